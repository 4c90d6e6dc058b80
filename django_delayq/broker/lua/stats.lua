-- PURPOSE  Count a shard's members, without the one that stands for its jobs.
-- KEYS     the constant list
-- ARGV     none
-- RETURNS  now_ms, members, due members, leased members, head_ms | '', epoch | '', points, generations,
--          members with a score that no member can have
-- COST     O(log N)
-- ATOMIC BECAUSE the counts must belong to one instant.
local now = server_ms()
local jobs = tonumber(call('ZSCORE', DUE, 'jobs') or '')
local due = call('ZCOUNT', DUE, '-inf', int(now)) - (jobs and jobs <= now and 1 or 0)
return {
  int(now), call('ZCARD', DUE) - (jobs and 1 or 0), due, call('HLEN', LEASE), head(),
  call('GET', EPOCH) or '', call('HLEN', POINT), call('HLEN', GEN),
  astray()
}
