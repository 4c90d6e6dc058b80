-- PURPOSE  Lease up to `limit` due members, or repeat the reply to a request whose reply was lost.
-- KEYS     the constant list (JOURNAL is the calling process' own)
-- ARGV     limit, lease_ms, request (grows with each new claim of this process and shard), journal_ms, worker
-- RETURNS  now_ms, head_ms | '' | 'stale', epoch | '', fence | '', '1' where jobs are due | '', then per member:
--          member, point_ms | '', generation | '', attempts, lapsed ('0'; else an earlier lease ran out: of this holder,
--          '1' or '-' where that is not known any more)
-- COST     O(limit + log N)
-- ATOMIC BECAUSE two workers must never hold a lease on one member, and the journal must tell exactly what was leased.
local limit, lease_ms, request = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, epoch = server_ms(), call('GET', EPOCH) or ''
local jobs = tonumber(call('ZSCORE', DUE, 'jobs') or '')
local reply = {int(now), '', epoch, '', jobs and jobs <= now and '1' or ''}
if epoch == '' then return reply end
local fence, members, lapsed = replayed(JOURNAL, LEASE, request, ARGV[5])
if fence == 'stale' then
  reply[2] = fence
  return reply
end
if not fence then
  members = {}
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
if not fence then
  fence = drawn(now, epoch)
  lapsed = lease(JOURNAL, LEASE, members, fence, request, ARGV[5], ARGV[4])
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
