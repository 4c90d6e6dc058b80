-- PURPOSE  Lease up to `limit` due members, or repeat the reply to a request whose reply was lost.
-- KEYS     the constant list (JOURNAL is the calling process' own)
-- ARGV     limit, lease_ms, request (grows with each new claim of this process and shard), journal_ms
-- RETURNS  now_ms, head_ms | '' | 'stale', epoch | '', fence | '', '1' where jobs are due | '', then per member:
--          member, point_ms | '', generation | '', attempts, lapsed ('0'; else an earlier lease ran out: of this fence,
--          '1' or '-' where that is not known any more)
-- COST     O(limit + log N)
-- ATOMIC BECAUSE two workers must never hold a lease on one member, and the journal must tell exactly what was leased.
local limit, lease_ms, request = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, epoch = server_ms(), call('GET', EPOCH) or ''
local jobs = tonumber(call('ZSCORE', DUE, 'jobs') or '')
local reply = {int(now), '', epoch, '', jobs and jobs <= now and '1' or ''}
if epoch == '' then return reply end
local members, lapsed, fence = {}, {}, nil
local last, last_fence, last_list = string.match(call('GET', JOURNAL) or '', '^(%d+) ([%w.]+) ?(.*)$')
last = whole(last)
if last and last > request then
  reply[2] = 'stale'
  return reply
end
local replay = last == request
if replay then
  fence = last_fence
  local flags, candidates = {}, {}
  for flag, member in string.gmatch(last_list, '([01])(%S+)') do
    candidates[#candidates + 1], flags[#flags + 1] = member, flag
  end
  local holders = #candidates > 0 and call('HMGET', LEASE, unpack(candidates)) or {}
  for i, member in ipairs(candidates) do
    if holders[i] == fence then members[#members + 1], lapsed[#lapsed + 1] = member, flags[i] end
  end
else
  for _, member in ipairs(call('ZRANGE', DUE, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, limit + 1)) do
    if member ~= 'jobs' and #members < limit then members[#members + 1] = member end -- that one is claimed by job_claim
  end
end
if #members == 0 then
  reply[2] = head()
  return reply
end
local points, generations = call('HMGET', POINT, unpack(members)), call('HMGET', GEN, unpack(members))
local attempts, scores = call('HMGET', ATTEMPTS, unpack(members)), {}
if not replay then
  local number = math.max((whole(call('GET', FENCE)) or 0) + 1, now * 1024)
  fence = int(number) .. '.' .. string.sub(string.gsub(epoch, '^building:', ''), 1, 16)
  fence = string.gsub(fence, '[^%w.]', '') -- of a garbage epoch only what every database stores
  local leases, list = {}, {}
  for i, holder in ipairs(call('HMGET', LEASE, unpack(members))) do
    lapsed[i] = holder or '0'
    leases[2 * i - 1], leases[2 * i] = members[i], fence
    -- A garbage member could read like several: it is not repeated.
    if not string.find(members[i], '%s') then list[#list + 1] = (holder and '1' or '0') .. members[i] end
  end
  call('SET', FENCE, int(number))
  call('SET', JOURNAL, int(request) .. ' ' .. fence .. ' ' .. table.concat(list, ' '), 'PX', ARGV[4])
  call('HSET', LEASE, unpack(leases))
end
for i, member in ipairs(members) do
  scores[2 * i - 1], scores[2 * i] = int(now + lease_ms), member
  local at = 5 * i + 1
  reply[at], reply[at + 1], reply[at + 2] = member, points[i] or '', generations[i] or ''
  reply[at + 3], reply[at + 4] = attempts[i] or '0', lapsed[i]
end
call('ZADD', DUE, unpack(scores))
reply[2], reply[4] = head(), fence
return reply
