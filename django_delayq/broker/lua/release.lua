-- PURPOSE  Hand back members that did not start, at once or after a delay. No attempt is counted.
-- KEYS     the constant list
-- ARGV     channel, place, mode ('' | 'lapsed': the next claim shall see, as this one did, that a lease ran out before),
--          then per member: member, fence, delay_ms
-- RETURNS  per member: 1 released, 0 not the caller's any more
-- COST     O(members · log N)
-- ATOMIC BECAUSE only the holder of the lease may move the score.
call('HDEL', ATTEMPTS, '') -- see Note [Out of memory] in renew.lua
local now, before, members = server_ms(), head(), {}
for i = 4, #ARGV, 3 do members[#members + 1] = ARGV[i] end
if #members == 0 then return {} end
local replies, scores, released = {}, {}, {}
for i, holder in ipairs(call('HMGET', LEASE, unpack(members))) do
  if holder == ARGV[3 * i + 2] then
    replies[i], released[#released + 1] = 1, members[i]
    scores[#scores + 1] = int(now + tonumber(ARGV[3 * i + 3]))
    scores[#scores + 1] = members[i]
  else
    replies[i] = 0
  end
end
if #released > 0 then
  call('ZADD', DUE, unpack(scores))
  call('HDEL', LEASE, unpack(released))
  -- A fence that nobody holds: not the caller's own, which a late renewal would still find.
  for i = 1, ARGV[3] == 'lapsed' and #released or 0 do call('HSET', LEASE, released[i], '-') end
end
hint(before, ARGV[1], ARGV[2])
return replies
