-- PURPOSE  Count a shard's members.
-- KEYS     the constant list
-- ARGV     none
-- RETURNS  now_ms, members, due members, leased members, the ms at which the first member came or comes due | '',
--          epoch | '', points, generations; in the second lane: members, due members
-- COST     O(log N)
-- ATOMIC BECAUSE the counts must belong to one instant.
local now, due, all, first = server_ms(), {}, {}, math.huge
-- When the first ready member came due: its turn without its priority.
local function first_ready(ready)
  local first = call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  if not first[1] then return math.huge end
  return math.min(now, first[2] + (tonumber(call('HGET', PRIORITY, first[1]) or '') or 0) * STEP_MS)
end
for lane, keys in ipairs(LANES) do
  local ready = call('ZCARD', keys[2])
  due[lane] = call('ZCOUNT', keys[1], '-inf', int(now)) + ready
  all[lane] = call('ZCARD', keys[1]) + ready
  first = math.min(first, tonumber(call('ZRANGE', keys[1], 0, 0, 'WITHSCORES')[2] or math.huge), first_ready(keys[2]))
end
return {
  int(now), all[1] + all[2], due[1] + due[2], call('HLEN', LEASE), first < math.huge and int(first) or '', call('GET', EPOCH) or '',
  call('HLEN', POINT), call('HLEN', GEN), all[2], due[2]
}
