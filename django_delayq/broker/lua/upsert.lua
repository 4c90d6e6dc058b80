-- PURPOSE  Mirror definitions: their generation, next due point and wake-up. Never disturbs what is leased or due.
-- KEYS     the constant list
-- ARGV     channel, place, mode ('' | 'sweep'), then per member: member, generation, point_ms, wake_ms,
--          expected ('' | the newer generation seen in Redis before the database was read, to be forced down)
-- RETURNS  per member: NEW, MOVED, SAME, OLD (a newer one is known), LEASED or DUE (only the generation was stored),
--          FIXED (a lost point restored under a lease), REWOUND (sweep: the ledger is behind Redis),
--          RESET (sweep: the score was damaged)
-- COST     O(members · log N)
-- ATOMIC BECAUSE edits arrive late and out of order, and a claim may come between.
local now, before, replies = server_ms(), head(), {}
local LONGEST_DELAY_MS = 2 * 3600 * 1000 -- twice the longest backoff: no sound entry that is due waits longer
for i = 4, #ARGV, 5 do
  local member, generation, point, wake, expected = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local known, stored = whole(call('HGET', GEN, member)), whole(call('HGET', POINT, member))
  local leased, score = call('HEXISTS', LEASE, member) == 1, tonumber(call('ZSCORE', DUE, member) or '')
  local newer = not known or generation > known or (expected ~= '' and whole(expected) == known)
  local pending = stored and (stored <= now or call('HEXISTS', ATTEMPTS, member) == 1)
  local result, place = nil, nil
  if not newer and generation < known then
    result = 'OLD'
  elseif leased and score and not stored then
    call('HSET', POINT, member, point)
    result = 'FIXED'
  elseif not stored or not (score or leased) then
    drop({member})
    result, place, newer = 'NEW', wake, true
  elseif leased then
    if not score then call('ZADD', DUE, int(now), member) end
    result = newer and 'LEASED' or 'SAME'
  elseif ARGV[3] == 'sweep' and tonumber(point) < stored then
    result, place = 'REWOUND', wake
  elseif pending then
    result = newer and 'DUE' or 'SAME'
    if ARGV[3] == 'sweep' and score > math.max(now, tonumber(wake)) + LONGEST_DELAY_MS then
      call('ZADD', DUE, int(now), member)
      result = 'RESET'
    end
  elseif newer then
    result, place = 'MOVED', wake
  elseif ARGV[3] == 'sweep' and tonumber(point) == stored and score ~= tonumber(wake) then
    result, place = 'RESET', wake
  else
    result = 'SAME'
  end
  if place then
    call('HSET', POINT, member, point)
    call('ZADD', DUE, place, member)
  end
  if newer then call('HSET', GEN, member, int(generation)) end
  replies[#replies + 1] = result
end
hint(before, ARGV[1], ARGV[2])
return replies
