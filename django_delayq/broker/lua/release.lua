-- PURPOSE  Hand back members that did not start, at once or after a delay. No attempt is counted.
-- KEYS     the constant list
-- ARGV     channel, place, then per member: member, fence, delay_ms
-- RETURNS  per member: 1 released, 0 not the caller's any more
-- COST     O(members · log N)
-- ATOMIC BECAUSE only the holder of the lease may move the score.
local now, before, members = server_ms(), head(), {}
for i = 3, #ARGV, 3 do members[#members + 1] = ARGV[i] end
if #members == 0 then return {} end
local replies, scores, released = {}, {}, {}
for i, holder in ipairs(call('HMGET', LEASE, unpack(members))) do
  if holder == ARGV[3 * i + 1] then
    replies[i], released[#released + 1] = 1, members[i]
    scores[#scores + 1] = int(now + tonumber(ARGV[3 * i + 2]))
    scores[#scores + 1] = members[i]
  else
    replies[i] = 0
  end
end
if #released > 0 then
  call('ZADD', DUE, unpack(scores))
  call('HDEL', LEASE, unpack(released))
end
hint(before, ARGV[1], ARGV[2])
return replies
