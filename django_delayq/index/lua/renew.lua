-- PURPOSE  Extend the leases that the caller still holds.
-- KEYS     the constant list
-- ARGV     lease_ms, rows as JSON: member, holder
-- RETURNS  the members whose lease is gone or another worker's; nothing is created for them
-- COST     O(members · log N)
-- ATOMIC BECAUSE a lease must not change hands between the comparison and the new score.
-- Note [Begin with a write that needs no memory]
-- A full Redis refuses commands that may need memory, unless the script has already written. So the scripts that extend
-- or end a lease begin with a write that needs none. The claim does not, so that nothing new starts on a full Redis.
call('HDEL', ATTEMPTS, '') -- see Note [Begin with a write that needs no memory]
local now, scores, lost = server_ms(), {}, {}
local ends = int(now + tonumber(ARGV[1]))
local rows, members, holders = named()
for i, member in ipairs(members) do
  if holders[i] == rows[i][2] then append(scores, ends, member) else lost[#lost + 1] = member end
end
if #scores > 0 then place(scores, now) end
return lost
