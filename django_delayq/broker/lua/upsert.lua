-- PURPOSE  Mirror definitions: their generation, next due point and wake-up. Never disturbs what is leased or due.
-- KEYS     the constant list
-- ARGV     channel, place, mode ('' | 'sweep'), then per member: member, generation, point_ms, wake_ms,
--          expected ('' | the newer generation seen in Redis before the database was read, to be forced down)
-- RETURNS  per member: NEW, MOVED, SAME, OLD (a newer one is known), LEASED or DUE (only the generation was stored),
--          FIXED (a lost point restored under a lease), REWOUND (sweep: the ledger is behind Redis)
-- COST     O(members · log N)
-- ATOMIC BECAUSE edits arrive late and out of order, and a claim may come between.
local now, before, replies = server_ms(), head(), {}
for i = 4, #ARGV, 5 do
  local member, generation, point, wake, expected = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local text = call('HGET', GEN, member)
  local known, stored = tonumber(text or ''), tonumber(call('HGET', POINT, member) or '')
  local leased, score = call('HEXISTS', LEASE, member) == 1, call('ZSCORE', DUE, member)
  local newer = not known or generation > known or (expected ~= '' and expected == text)
  local result
  if not newer and generation < known then
    result = 'OLD'
  elseif leased and score and not stored then
    call('HSET', POINT, member, point)
    result = 'FIXED'
  elseif not stored or not (score or leased) then
    drop({member})
    call('HSET', POINT, member, point)
    call('ZADD', DUE, wake, member)
    result = 'NEW'
  elseif leased then
    if not score then call('ZADD', DUE, int(now), member) end
    result = newer and 'LEASED' or 'SAME'
  elseif ARGV[3] == 'sweep' and tonumber(point) < stored then
    call('HSET', POINT, member, point)
    call('ZADD', DUE, wake, member)
    result = 'REWOUND'
  elseif stored <= now or call('HEXISTS', ATTEMPTS, member) == 1 then
    result = newer and 'DUE' or 'SAME'
  elseif newer then
    call('HSET', POINT, member, point)
    call('ZADD', DUE, wake, member)
    result = 'MOVED'
  else
    result = 'SAME'
  end
  if newer then call('HSET', GEN, member, int(generation)) end
  replies[#replies + 1] = result
end
hint(before, ARGV[1], ARGV[2])
return replies
