-- PURPOSE  Extend the leases that the caller still holds; in mode 'start' count a take-over of each too.
-- KEYS     the constant list of jobs; in mode 'start' followed by each job's result
-- ARGV     lease_ms, mode ('' | 'start'), then per job: member, holder (fence, space, worker)
-- RETURNS  the members whose lease is gone or somebody else's; in mode 'start' also those whose result stands: these
--          are forgotten
-- COST     O(jobs · log N)
-- ATOMIC BECAUSE a lease must not change hands between the comparison and the new score.
call('HDEL', RECLAIMS, '') -- see Note [Out of memory] in renew.lua
local now, start, members, holders = server_ms(), ARGV[2] == 'start', {}, {}
for i = 3, #ARGV, 2 do
  members[#members + 1], holders[#holders + 1] = ARGV[i], ARGV[i + 1]
end
if #members == 0 then return {} end
local scores, kept, lost, finished = {}, {}, {}, {}
for i, holder in ipairs(call('HMGET', HELD, unpack(members))) do
  if holder ~= holders[i] then
    lost[#lost + 1] = members[i]
  elseif start and call('EXISTS', KEYS[COMMON + i]) == 1 then
    lost[#lost + 1], finished[#finished + 1] = members[i], members[i]
  else
    kept[#kept + 1] = members[i]
    scores[#scores + 1], scores[#scores + 2] = int(now + tonumber(ARGV[1])), members[i]
    if start then
      local counted = whole(call('HGET', RECLAIMS, members[i])) or 0
      call('HSET', RECLAIMS, members[i], int(counted + 1))
    end
  end
end
if #kept > 0 then
  call('ZREM', READY, unpack(kept)) -- where its lease ran out, and nobody has taken it
  call('ZADD', JOBS, unpack(scores))
end
if #finished > 0 then forget(finished) end
point(false, now)
return lost
