-- Prelude of every script, after the KEYS of its kind.
-- Integers leave through int(): tostring() loses digits above 2^53's decimals. The server's TIME is the only clock.
local call = redis.call

local function int(number) return string.format('%.0f', number) end

-- A whole number that Lua holds exactly, or nil for nothing and for garbage (nan, inf, text).
local function whole(text)
  local number = tonumber(text or '')
  if number and number >= 0 and number < 2 ^ 53 then return math.floor(number) end
end

local function server_us()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function server_ms() return math.floor(server_us() / 1000) end

local function append(list, a, b) list[#list + 1], list[#list + 2] = a, b end

-- No lease and no backoff reaches so far ahead: such a score was damaged, and is not that of a lease.
local function unsound(score, now) return score > now + 2 * 3600 * 1000 end

local function head() return call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or '' end

-- Tell sleeping workers of an earlier head: the message is '<shard> <score>', so that they need not ask. Return the head.
local function hint(before, channel, shard)
  local after = head()
  if after ~= '' and (before == '' or tonumber(after) < tonumber(before)) then
    call('PUBLISH', channel, shard .. ' ' .. after)
  end
  return after
end

-- Note [One text]
-- Where a reply has several values for each of a hundred members, it is one text of JSON: redis-py reads that ten times
-- as fast as a list. What is large and is not ours, such as payloads, stays out of it: its quotes would be looked for.

-- Note [Leases]
-- Of either kind, a lease is a field in a hash: member -> holder, which is the fence of the claim, a space, its worker.
-- Whoever settles or renews names the holder. A claim draws one fence for all that it leases, greater than any before.
-- It notes the members in the journal of its process, each with whether somebody else's lease on it had run out: where
-- its reply is lost, the next claim carries the same request, and is told once more what is still leased so.

-- Where this request was made before, return its fence, what is still leased under it, and the flags of the journal.
-- 'stale' where a later one was; nil for a new one.
local function replayed(journal, leases, request, worker)
  local last, fence, list = string.match(call('GET', journal) or '', '^(%d+) ([%w.]+) ?(.*)$')
  last = whole(last)
  if not last or last < request then return nil end
  if last > request then return 'stale' end
  local candidates, flags, members, lapsed = {}, {}, {}, {}
  for flag, member in string.gmatch(list, '([01])(%S+)') do
    candidates[#candidates + 1], flags[#flags + 1] = member, flag
  end
  local holders = #candidates > 0 and call('HMGET', leases, unpack(candidates)) or {}
  for i, member in ipairs(candidates) do
    if holders[i] == fence .. ' ' .. worker then members[#members + 1], lapsed[#lapsed + 1] = member, flags[i] end
  end
  return fence, members, lapsed
end

-- Draw a fence for this claim.
local function drawn(now, epoch)
  local number = math.max((whole(call('GET', FENCE)) or 0) + 1, now * 1024)
  call('SET', FENCE, int(number))
  local fence = int(number) .. '.' .. string.sub(string.gsub(epoch, '^building:', ''), 1, 16)
  return (string.gsub(fence, '[^%w.]', '')) -- of a garbage epoch only what every database stores
end

-- Lease members under a fence, and note it; return who had each before, '0' for nobody.
local function lease(journal, leases, members, fence, request, worker, journal_ms)
  local holders, list, lapsed = {}, {}, {}
  for i, holder in ipairs(call('HMGET', leases, unpack(members))) do
    lapsed[i] = holder or '0'
    append(holders, members[i], fence .. ' ' .. worker)
    -- A garbage member could read like several: it is not repeated.
    if not string.find(members[i], '%s') then list[#list + 1] = (holder and '1' or '0') .. members[i] end
  end
  call('SET', journal, int(request) .. ' ' .. fence .. ' ' .. table.concat(list, ' '), 'PX', journal_ms)
  call('HSET', leases, unpack(holders))
  return lapsed
end

-- How many members of a hash of leases have one that still stands, by their scores. '-' is nobody's: see settle.
local function standing(leases, scored, now)
  local number, members, fields = 0, {}, call('HGETALL', leases)
  for i = 1, #fields, 2 do
    if fields[i + 1] ~= '-' then members[#members + 1] = fields[i] end
  end
  for first = 1, #members, 1000 do
    for _, score in ipairs(call('ZMSCORE', scored, unpack(members, first, math.min(first + 999, #members)))) do
      if score and tonumber(score) > now then number = number + 1 end
    end
  end
  return number
end

-- Note [Limits]
-- At most so many leases of both kinds may stand in a shard: a lease that has run out is nobody's execution any more. So
-- whoever is killed makes room when its lease ends, and what is claimed ahead counts as if it ran.
local function room(most, limit, now)
  if (most or '') == '' then return limit end
  local both = standing(KEYS[LEASES[1]], DUE, now) + standing(KEYS[LEASES[2]], KEYS[LEASES[3]], now)
  return math.max(0, math.min(limit, tonumber(most) - both))
end

-- Claim as ARGV says: limit, lease_ms, request, journal_ms, worker, and how many leases may stand, '' for any number.
-- `find` gives the members to be leased; `tell` reads what is told of them (so that a key of a foreign type fails before
-- anything is written), and returns it for each. Completes the reply, but for the head; returns the members, with the
-- scores that end their leases, and whether they are newly leased. nil where nothing may be claimed, and the reply is
-- complete.
local function claim(journal, leases, now, reply, find, tell)
  local epoch, request, worker, scores = reply[3], tonumber(ARGV[3]), ARGV[5], {}
  if epoch == '' then return nil end
  local fence, members, lapsed = replayed(journal, leases, request, worker)
  local fresh = not fence
  if fence == 'stale' then
    reply[2] = fence
    return nil
  end
  if fresh then
    local limit = room(ARGV[6], tonumber(ARGV[1]), now)
    members = limit > 0 and find(limit) or {}
  end
  if #members == 0 then return members end
  local row = tell(members)
  if fresh then
    fence = drawn(now, epoch)
    lapsed = lease(journal, leases, members, fence, request, worker, ARGV[4])
  end
  reply[4] = fence
  for i, member in ipairs(members) do
    append(scores, int(now + tonumber(ARGV[2])), member)
    reply[#reply + 1] = member
    for _, value in ipairs(row(i, lapsed[i])) do reply[#reply + 1] = value end
  end
  return members, scores, fresh
end

-- The members that ARGV names from `first` on, `size` arguments for each, the second of them its holder; and for each
-- whether that one still holds it.
local function named(leases, first, size)
  local members, own = {}, {}
  for i = first, #ARGV, size do members[#members + 1] = ARGV[i] end
  for i, holder in ipairs(#members > 0 and call('HMGET', leases, unpack(members)) or {}) do
    own[i] = holder == ARGV[first + (i - 1) * size + 1]
  end
  return members, own
end
