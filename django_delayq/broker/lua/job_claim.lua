-- PURPOSE  Lease up to `limit` jobs whose turn it is, or repeat the reply to a request whose reply was lost.
-- KEYS     the constant list of jobs (TAKEN is the calling process' own)
-- ARGV     limit, lease_ms, request (grows with each new claim of this process and shard), journal_ms, worker
-- RETURNS  now_ms, head_ms | '' | 'stale', epoch | '', fence | '', then per job:
--          member, payload | '', lapsed ('0'; else an earlier lease ran out: of this holder, '1' or '-' where that is
--          not known any more), reclaims
-- COST     O((limit + what came due) · log N)
-- ATOMIC BECAUSE two workers must never hold a lease on one job, and the journal must tell exactly what was leased.
-- Note [Due first, then its turn]
-- Whatever has come due is moved to READY before anything is taken, at most PROMOTE at a time: so what is urgent goes
-- first however much became due before it.
local PROMOTE = 500
local limit, lease_ms, request = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local us, epoch = server_us(), call('GET', EPOCH) or ''
local now = math.floor(us / 1000)
local reply = {int(now), '', epoch, ''}
if epoch == '' then return reply end
local last, last_fence, last_list = string.match(call('GET', TAKEN) or '', '^(%d+) ([%w.]+) ?(.*)$')
last = whole(last)
if last and last > request then
  reply[2] = 'stale'
  return reply
end
local members, lapsed, fence = {}, {}, nil
local replay = last == request
if replay then
  fence = last_fence
  local flags, candidates = {}, {}
  for flag, member in string.gmatch(last_list, '([01])(%S+)') do
    candidates[#candidates + 1], flags[#flags + 1] = member, flag
  end
  local holders = #candidates > 0 and call('HMGET', HELD, unpack(candidates)) or {}
  for i, member in ipairs(candidates) do
    if holders[i] == fence .. ' ' .. ARGV[5] then members[#members + 1], lapsed[#lapsed + 1] = member, flags[i] end
  end
else
  local due = call('ZRANGE', JOBS, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, PROMOTE, 'WITHSCORES')
  if #due > 0 then
    local names, ready = {}, {}
    for i = 1, #due, 2 do names[#names + 1] = due[i] end
    local ranks = priorities(names)
    for i, member in ipairs(names) do
      ready[2 * i - 1], ready[2 * i] = int(turn((tonumber(due[2 * i]) or 0) * 1000, ranks[i])), member
    end
    call('ZREM', JOBS, unpack(names))
    call('ZADD', READY, unpack(ready))
  end
  members = call('ZRANGE', READY, 0, limit - 1)
end
if #members == 0 then
  point(true, now)
  reply[2] = head()
  return reply
end
local payloads, reclaims, scores = call('HMGET', PAYLOAD, unpack(members)), {}, {}
if call('HLEN', RECLAIMS) > 0 then reclaims = call('HMGET', RECLAIMS, unpack(members)) end
if not replay then
  local number = math.max((whole(call('GET', FENCE)) or 0) + 1, now * 1024)
  fence = int(number) .. '.' .. string.sub(string.gsub(epoch, '^building:', ''), 1, 16)
  fence = string.gsub(fence, '[^%w.]', '') -- of a garbage epoch only what every database stores
  local holders, list = {}, {}
  local unique = call('HLEN', UNIQUE) > 0
  for i, holder in ipairs(call('HMGET', HELD, unpack(members))) do
    lapsed[i] = holder or '0'
    holders[2 * i - 1], holders[2 * i] = members[i], fence .. ' ' .. ARGV[5]
    -- A garbage member could read like several: it is not repeated.
    if not string.find(members[i], '%s') then list[#list + 1] = (holder and '1' or '0') .. members[i] end
    if unique then give_up_key(members[i]) end
  end
  call('SET', FENCE, int(number))
  call('SET', TAKEN, int(request) .. ' ' .. fence .. ' ' .. table.concat(list, ' '), 'PX', ARGV[4])
  call('HSET', HELD, unpack(holders))
end
for i, member in ipairs(members) do
  scores[2 * i - 1], scores[2 * i] = int(now + lease_ms), member
  local at = 4 * i + 1
  reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = member, payloads[i] or '', lapsed[i], reclaims[i] or '0'
end
call('ZREM', READY, unpack(members))
call('ZADD', JOBS, unpack(scores))
point(true, now)
reply[2], reply[4] = head(), fence
return reply
