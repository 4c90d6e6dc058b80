-- PURPOSE  Extend the leases that the caller still holds.
-- KEYS     the constant list
-- ARGV     lease_ms, then per member: member, holder
-- RETURNS  the members whose lease is gone or somebody else's; nothing is created for them
-- COST     O(members · log N)
-- ATOMIC BECAUSE a lease must not change hands between the comparison and the new score.
-- Note [Out of memory]
-- A full Redis refuses commands that may need memory, unless the script has written something before. So the scripts
-- that prolong or end a lease begin with a write that needs none; the claim does not, and starts nothing new there.
call('HDEL', ATTEMPTS, '') -- see Note [Out of memory]
local now, members, fences = server_ms(), {}, {}
for i = 2, #ARGV, 2 do
  members[#members + 1], fences[#fences + 1] = ARGV[i], ARGV[i + 1]
end
if #members == 0 then return {} end
local scores, lost = {}, {}
for i, holder in ipairs(call('HMGET', LEASE, unpack(members))) do
  if holder == fences[i] then
    scores[#scores + 1] = int(now + tonumber(ARGV[1]))
    scores[#scores + 1] = members[i]
  else
    lost[#lost + 1] = members[i]
  end
end
if #scores > 0 then call('ZADD', DUE, unpack(scores)) end
return lost
