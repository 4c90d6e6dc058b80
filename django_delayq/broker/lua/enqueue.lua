-- PURPOSE  Add run members that are not there yet. Repeating it changes nothing.
-- KEYS     the constant list
-- ARGV     channel, shard, then per member: member, point_ms, wake_ms
-- RETURNS  per member: 1 added, 0 already there
-- COST     O(members · log N)
-- ATOMIC BECAUSE the point must never be there without the member, nor be overwritten under a lease.
local before, replies = head(), {}
for i = 3, #ARGV, 3 do
  local member, point, wake = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if call('ZADD', DUE, 'NX', wake, member) == 1 then
    call('HSET', POINT, member, point)
    call('HSET', GEN, member, '0')
    replies[#replies + 1] = 1
  else
    replies[#replies + 1] = 0
  end
end
hint(before, ARGV[1], ARGV[2])
return replies
