-- PURPOSE  Count a shard's members.
-- KEYS     the constant list
-- ARGV     none
-- RETURNS  now_ms, members, due members, leased members, head_ms | '', epoch | '', points, generations,
--          members with a score that no member can have, and of the second lane: members, due members
-- COST     O(log N)
-- ATOMIC BECAUSE the counts must belong to one instant.
local now, due, all = server_ms(), {}, {}
for lane, keys in ipairs(LANES) do
  local ready = call('ZCARD', keys[2])
  due[lane] = call('ZCOUNT', keys[1], '-inf', int(now)) + ready
  all[lane] = call('ZCARD', keys[1]) + ready
end
return {
  int(now), all[1] + all[2], due[1] + due[2], call('HLEN', LEASE), head(), call('GET', EPOCH) or '',
  call('HLEN', POINT), call('HLEN', GEN), astray(), all[2], due[2]
}
