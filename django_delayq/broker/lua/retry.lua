-- PURPOSE  Hand back members whose attempt failed, to come due again after a delay. The point stays, an attempt counts.
-- KEYS     the constant list
-- ARGV     channel, place, then per member: member, fence, delay_ms
-- RETURNS  per member: 1 will be retried, 0 not the caller's any more
-- COST     O(members · log N)
-- ATOMIC BECAUSE only the holder of the lease may move the score and count.
call('HDEL', ATTEMPTS, '') -- see Note [Out of memory] in renew.lua
local now, before, members = server_ms(), head(), {}
for i = 3, #ARGV, 3 do members[#members + 1] = ARGV[i] end
if #members == 0 then return {} end
local replies, scores, failed = {}, {}, {}
for i, holder in ipairs(call('HMGET', LEASE, unpack(members))) do
  if holder == ARGV[3 * i + 1] then
    replies[i], failed[#failed + 1] = 1, members[i]
    scores[#scores + 1] = int(now + tonumber(ARGV[3 * i + 2]))
    scores[#scores + 1] = members[i]
    local counted = whole(call('HGET', ATTEMPTS, members[i])) or 0
    call('HSET', ATTEMPTS, members[i], int(counted + 1))
  else
    replies[i] = 0
  end
end
if #failed > 0 then
  call('ZADD', DUE, unpack(scores))
  call('HDEL', LEASE, unpack(failed))
end
hint(before, ARGV[1], ARGV[2])
return replies
