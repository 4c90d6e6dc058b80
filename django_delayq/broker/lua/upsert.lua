-- PURPOSE  Mirror definitions: their generation, next due point and wake-up. Never disturbs what is leased or due.
-- KEYS     the constant list
-- ARGV     channel, shard, mode ('' | 'reset': the ledger shows that what stands there is wrong), then per member,
--          each at most once: member, generation, point_ms, wake_ms,
--          expected ('' | the newer generation seen in Redis before the database was read, to be forced down)
-- RETURNS  one text (a hundred replies take three times as long to read), with a word per member: NEW, MOVED, SAME,
--          OLD (a newer one is known), LEASED or DUE (only the generation was stored;
--          one that was handed back with a delay comes due at once),
--          FIXED (a lost point restored under a lease); in 'reset' mode REWOUND (the point was ahead of the ledger) or
--          RESET (point and score written; of a point that is due only the score, so that its claimer judges it)
-- COST     O(members · log N)
-- ATOMIC BECAUSE edits arrive late and out of order, and a claim may come between.
local now, before, members = server_ms(), head(), {}
for i = 4, #ARGV, 5 do members[#members + 1] = ARGV[i] end
if #members == 0 then return '' end
local scores_now, holders = call('ZMSCORE', DUE, unpack(members)), call('HMGET', LEASE, unpack(members))
local known_now, stored_now = call('HMGET', GEN, unpack(members)), call('HMGET', POINT, unpack(members))
local attempts = call('HMGET', ATTEMPTS, unpack(members))
local replies, scores, points, generations, fresh = {}, {}, {}, {}, {}
for i, member in ipairs(members) do
  local at = 5 * i - 1
  local generation, point, wake, expected = tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local known, stored, score = whole(known_now[i]), whole(stored_now[i]), tonumber(scores_now[i] or '')
  local leased = holders[i] and not (score and unsound(score, now))
  local newer = not known or generation > known or (expected ~= '' and whole(expected) == known)
  local result, place = nil, nil
  if not newer and generation < known then
    result = 'OLD'
  elseif leased and score and not stored then
    append(points, member, point)
    result = 'FIXED'
  elseif not stored or not (score or leased) then
    result, place, newer = 'NEW', wake, true
  elseif leased then
    if not score then append(scores, int(now), member) end
    result = newer and 'LEASED' or 'SAME'
  elseif ARGV[3] == 'reset' and stored <= now and stored <= tonumber(point) then
    append(scores, int(now), member)
    result = 'RESET'
  elseif ARGV[3] == 'reset' then
    result, place = tonumber(point) < stored and 'REWOUND' or 'RESET', wake
  elseif stored <= now or attempts[i] then
    result = newer and 'DUE' or 'SAME'
    if newer and not attempts[i] and score > now then -- handed back with a delay: this edit may be what it waits for
      local soon = math.max(now, tonumber(point) == stored and tonumber(wake) or now)
      append(scores, int(math.min(score, soon)), member)
    end
  else
    result, place = newer and 'MOVED' or 'SAME', newer and wake
  end
  if place then
    append(points, member, point)
    append(scores, place, member)
    if holders[i] or attempts[i] then fresh[#fresh + 1] = member end
  end
  if newer then append(generations, member, int(generation)) end
  replies[i] = result
end
if #fresh > 0 then
  call('HDEL', LEASE, unpack(fresh))
  call('HDEL', ATTEMPTS, unpack(fresh))
end
if #points > 0 then call('HSET', POINT, unpack(points)) end
if #generations > 0 then call('HSET', GEN, unpack(generations)) end
if #scores > 0 then call('ZADD', DUE, unpack(scores)) end
hint(before, ARGV[1], ARGV[2])
return table.concat(replies, ' ')
