-- PURPOSE  Count a shard's jobs. Touches every key of jobs, so that one of a foreign type is found.
-- KEYS     the constant list of jobs
-- ARGV     none
-- RETURNS  now_ms, waiting for a time, waiting for their turn, held by workers, dead, and the ms at which the next one of
--          those that could run came due | ''
-- COST     O(log N)
-- ATOMIC BECAUSE the counts must belong to one instant.
local now, held = server_ms(), call('HLEN', HELD)
for _, key in ipairs({PAYLOAD, PRIORITY, UNIQUE, RECLAIMS}) do call('HLEN', key) end
local came_due = call('ZRANGE', JOBS, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2] or ''
local since = ready_since()
if since then came_due = int(math.max(0, math.min(since, tonumber(came_due) or since))) end
return {int(now), call('ZCARD', JOBS) - held, call('ZCARD', READY), held, call('ZCARD', DEAD), came_due}
