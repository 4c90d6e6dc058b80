-- PURPOSE  Lease up to `limit` due members, or repeat a lost reply.
-- KEYS     the constant list; JOURNAL is the calling process' own
-- ARGV     limit, lease_ms, request (grows with each new claim of this process and shard), journal_ms, worker,
--          limit of leases in the shard (Note [A limit counts live leases]) | '', random part of the fence
-- RETURNS  JSON, see Note [Values as one JSON text]: now_ms, head_ms | '', epoch | '', fence | '', then per member:
--          member, point_ms | '', generation | '', attempts | '', lapsed ('0': no lease ran out; else its former
--          holder, or '1' or '-' if that is unknown)
-- COST     O((limit + 500) · log N), with a limit of leases also O(leases)
-- ATOMIC BECAUSE two workers must never hold a lease on one member, and the journal must match the leases.

-- Maximum members that one claim moves to their turn: about 1 ms of Redis.
local MOST_MOVED = 500
local now, request, worker = server_ms(), tonumber(ARGV[3]), ARGV[5]

-- For a repeated request: its fence, its members that are still leased, and their flags in the journal. 'stale' if a
-- later request was made; nil for a new one.
local function replayed()
  local last, fence, list = string.match(call('GET', JOURNAL) or '', '^(%d+) ([%w.]+) ?(.*)$')
  last = whole(last)
  if not last or last < request then return nil end
  if last > request then return 'stale' end
  local candidates, flags, members, lapsed = {}, {}, {}, {}
  for flag, member in string.gmatch(list, '([01])(%S+)') do
    candidates[#candidates + 1], flags[#flags + 1] = member, flag
  end
  local holders = #candidates > 0 and call('HMGET', LEASE, unpack(candidates)) or {}
  for i, member in ipairs(candidates) do
    if holders[i] == fence .. ' ' .. worker then members[#members + 1], lapsed[#lapsed + 1] = member, flags[i] end
  end
  return fence, members, lapsed
end

-- Note [A limit counts live leases]
-- ARGV[6] limits the leases in a shard. A lease that has run out does not count, so a killed worker makes room when
-- its lease ends; a member claimed ahead counts as running. '-' is not a holder: see settle.
local function room(limit)
  if (ARGV[6] or '') == '' then return limit end
  local standing, members, fields = 0, {}, call('HGETALL', LEASE)
  for i = 1, #fields, 2 do
    if fields[i + 1] ~= '-' then members[#members + 1] = fields[i] end
  end
  for first = 1, #members, 1000 do
    local part = {unpack(members, first, math.min(first + 999, #members))}
    local scores = scores_of(part)
    for i = 1, #part do
      if scores[i] and scores[i] > now then standing = standing + 1 end
    end
  end
  return math.max(0, math.min(limit, tonumber(ARGV[6]) - standing))
end

-- Those found that belong to this lane. Members of the other lane, added by another program, are moved to it.
local function belonging(found, lane)
  local own = {}
  for _, member in ipairs(found) do
    local home = LANES[lane_of(member)]
    if home == LANES[lane] then own[#own + 1] = member else
      for _, key in ipairs(LANES[lane]) do call('ZREM', key, member) end
      if not call('ZMSCORE', home[2], member)[1] then call('ZADD', home[1], 'NX', int(now), member) end
    end
  end
  return own
end

-- The first members of a lane by turn. See Note [Two lanes per claim].
local function next_in(lane, limit)
  local waiting, ready = unpack(LANES[lane])
  if call('EXISTS', ready, PRIORITY) == 0 then
    return belonging(call('ZRANGE', waiting, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, limit), lane)
  end
  local found = call('ZRANGE', waiting, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, MOST_MOVED, 'WITHSCORES')
  local members, turns = {}, {}
  for i = 1, #found, 2 do members[#members + 1] = found[i] end
  for i, step in ipairs(steps_of(members)) do append(turns, tonumber(found[2 * i]) - step * STEP_MS, members[i]) end
  if #members > 0 then
    call('ZADD', ready, unpack(turns))
    call('ZREM', waiting, unpack(members))
  end
  return belonging(call('ZRANGE', ready, 0, limit - 1), lane)
end

-- Half from each lane if both have enough; the odd one alternates.
local function find_due(limit)
  local points, jobs, members = next_in(1, limit), next_in(2, limit), {}
  local half = math.floor((limit + request % 2) / 2)
  local most = math.min(#points, math.max(half, limit - #jobs))
  local left = math.min(#jobs, limit - most)
  for i = 1, math.max(most, left) do
    if i <= most then members[#members + 1] = points[i] end
    if i <= left then members[#members + 1] = jobs[i] end
  end
  return members
end

-- Lease members under a fence and write the journal; return the former holder of each, '0' for none.
local function lease(members, fence)
  local holders, list, lapsed = {}, {}, {}
  local own = fence .. ' ' .. worker
  for i, holder in ipairs(call('HMGET', LEASE, unpack(members))) do
    lapsed[i] = holder or '0'
    append(holders, members[i], own)
    -- A member with spaces (garbage) would read as several: it is not repeated.
    if not string.find(members[i], '%s') then list[#list + 1] = (holder and '1' or '0') .. members[i] end
  end
  call('SET', JOURNAL, int(request) .. ' ' .. fence .. ' ' .. table.concat(list, ' '), 'PX', ARGV[4])
  call('HSET', LEASE, unpack(holders))
  return lapsed
end

-- An integer as stored, '' for nothing and for garbage.
local function known(text) return whole(text) and not string.find(text, '%D') and text or '' end

local reply = {int(now), '', call('GET', EPOCH) or '', ''}
if reply[3] == '' then return cjson.encode(reply) end
local fence, members, lapsed = replayed()
if fence == 'stale' then return cjson.encode(reply) end
if not fence then
  local limit = room(tonumber(ARGV[1]))
  members = limit > 0 and find_due(limit) or {}
end
if #members > 0 then
  -- Read before the first lease is written: fails here if a key has a foreign type.
  local points, generations = call('HMGET', POINT, unpack(members)), call('HMGET', GEN, unpack(members))
  local attempts, ends, scores = call('HMGET', ATTEMPTS, unpack(members)), int(now + tonumber(ARGV[2])), {}
  if not fence then
    fence = int(now) .. '.' .. ARGV[7]
    lapsed = lease(members, fence)
  end
  reply[4] = fence
  for i, member in ipairs(members) do
    append(scores, ends, member)
    append(reply, member, known(points[i]))
    append(reply, known(generations[i]), known(attempts[i]))
    reply[#reply + 1] = lapsed[i]
  end
  place(scores, now)
end
reply[2] = head(now)
return cjson.encode(reply)
