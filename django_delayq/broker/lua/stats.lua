-- PURPOSE  Count a shard's members.
-- KEYS     the constant list
-- ARGV     none
-- RETURNS  now_ms, members, due members, leased members, head_ms | '', epoch | ''
-- COST     O(log N)
-- ATOMIC BECAUSE the counts must belong to one instant.
local now = server_ms()
return {
  int(now), call('ZCARD', DUE), call('ZCOUNT', DUE, '-inf', int(now)), call('HLEN', LEASE), head(),
  call('GET', EPOCH) or ''
}
