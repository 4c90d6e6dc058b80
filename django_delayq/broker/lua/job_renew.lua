-- PURPOSE  Extend the leases that the caller still holds; in mode 'start' count a take-over of each too.
-- KEYS     the constant list of jobs; in mode 'start' followed by each job's result
-- ARGV     lease_ms, mode ('' | 'start'), then per job: member, holder (fence, space, worker)
-- RETURNS  the members whose lease is gone or somebody else's; in mode 'start' also those whose result stands: these
--          are forgotten
-- COST     O(jobs · log N)
-- ATOMIC BECAUSE a lease must not change hands between the comparison and the new score.
call('HDEL', RECLAIMS, '') -- see Note [Out of memory] in renew.lua
local now, start, scores, kept, lost, finished = server_ms(), ARGV[2] == 'start', {}, {}, {}, {}
local members, own = named(HELD, 3, 2)
for i, member in ipairs(members) do
  if not own[i] then
    lost[#lost + 1] = member
  elseif start and call('EXISTS', KEYS[COMMON + i]) == 1 then
    lost[#lost + 1], finished[#finished + 1] = member, member
  else
    kept[#kept + 1] = member
    append(scores, int(now + tonumber(ARGV[1])), member)
    if start then call('HSET', RECLAIMS, member, int((whole(call('HGET', RECLAIMS, member)) or 0) + 1)) end
  end
end
if #kept > 0 then
  call('ZREM', READY, unpack(kept)) -- where its lease ran out, and nobody has taken it
  call('ZADD', JOBS, unpack(scores))
end
if #finished > 0 then forget(finished) end
point(false, now)
return lost
