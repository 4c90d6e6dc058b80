-- PURPOSE  Note that somebody waits for the end of jobs, and say which have not ended.
-- KEYS     the constant list of jobs, WAITED
-- ARGV     ms for which that counts, then the members
-- RETURNS  per member: 1 it waits or is held, 0 it is not here any more, or is dead
-- COST     O(jobs · log N)
-- ATOMIC BECAUSE a job that is still here must be named before it can end; see Note [Told of an end] in _jobs.lua.
local now, ms, members = server_ms(), tonumber(ARGV[1]), {}
for i = 2, #ARGV do members[#members + 1] = ARGV[i] end
local old = call('ZRANGE', WAITED, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, 500)
if #old > 0 then call('ZREM', WAITED, unpack(old)) end
local texts, died, reply, waited = call('HMGET', PAYLOAD, unpack(members)), call('ZMSCORE', DEAD, unpack(members)), {}, {}
for i, member in ipairs(members) do
  reply[i] = texts[i] and not died[i] and 1 or 0
  if reply[i] == 1 then append(waited, int(now + ms), member) end
end
if #waited > 0 then
  call('ZADD', WAITED, unpack(waited))
  call('PEXPIRE', WAITED, int(2 * ms))
end
return reply
