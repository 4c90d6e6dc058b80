-- PURPOSE  Mirror schedules and rows: generation, next due point, wake-up and priority, or the end. Never
--          disturbs leased members.
-- KEYS     the constant list
-- ARGV     channel, mode, rows as JSON, each member once (but 'gone'): member, generation, point_ms, wake_ms (0: now),
--          expected ('' | the newer generation found in Redis before the database was read, to overwrite), priority,
--          where mode is
--          ''      a saved schedule; a due member is unchanged
--          'reset' like '', but the ledger shows that the stored state is wrong
--          'new'   a row: added, unless it is there with this generation. Another generation is another row (restored
--                  database) or a retried job: then the holder's settlement no longer applies
--          'move'  a row that is there and not leased comes due at wake_ms, with this point
--          'end'   a definition was disabled or has no further point: the holder, or the next claimer if due, records
--                  it and drops the member. 'end' and 'gone' only use member, generation and expected
--          'gone'  deleted or moved away: nothing is left to record; only a live lease keeps the member
-- RETURNS  one text (a list of 100 replies takes three times as long to read), a word per member: NEW, MOVED, SAME,
--          OLD (a newer one is known), LEASED or DUE (only the generation was stored;
--          a member returned with a delay comes due now, unless a lease of it ran out), GONE (it is not there),
--          REMOVED, FIXED (lost point restored under a lease); with 'reset' REWOUND (point was ahead of the ledger) or
--          RESET (point and score written; if the point is due, only the score, so that its claimer judges it)
-- COST     O(members · log N)
-- ATOMIC BECAUSE edits arrive late and out of sequence, and a claim may come between.
local now = server_ms()
local before, mode, rows, members, holders = head(now), ARGV[2], named()
local known_now, scores_now, stored_now, attempts = call('HMGET', GEN, unpack(members)), {}, {}, {}
local added = mode == 'new' -- and none of them is there
for i = 1, #rows do added = added and not known_now[i] and not holders[i] end
if not added then
  scores_now, stored_now = scores_of(members), call('HMGET', POINT, unpack(members))
  attempts = call('HMGET', ATTEMPTS, unpack(members))
end
local replies, scores, points, generations, fresh, steps, plain, gone = {}, {}, {}, {}, {}, {}, {}, {}
for i, row in ipairs(rows) do
  local member, generation, point, wake, expected, priority = unpack(row)
  if wake == 0 then wake = now end
  local known, stored, score = whole(known_now[i]), whole(stored_now[i]), scores_now[i]
  local leased = holders[i] and not (score and unsound(score, now))
  local newer = not known or generation > known or (expected ~= '' and whole(expected) == known)
  local result, to = nil, nil
  if mode == 'end' or mode == 'gone' then
    if not newer and generation < known then
      result = 'OLD'
    elseif leased and score and (mode == 'end' or score > now and holders[i] ~= '-') then
      result = 'LEASED'
    elseif score and stored and stored <= now and mode == 'end' then
      result = 'DUE'
    else
      result, gone[#gone + 1] = (score or stored) and 'REMOVED' or 'GONE', member
    end
    if mode == 'end' and (result == 'LEASED' or result == 'DUE') then append(generations, member, int(generation)) end
    newer = false
  elseif mode == 'move' then
    -- '-' is not a holder, see settle: it is kept, so that the next claim sees that a lease ran out.
    result, newer = score and (leased and holders[i] ~= '-' and 'LEASED' or 'MOVED') or 'GONE', false
    if result == 'MOVED' then to = wake end
  elseif mode == 'new' then
    local held = leased and score
    newer = not (score and stored and known == generation) and (not held or generation > (known or 0))
    result, to = held and 'LEASED' or newer and 'NEW' or 'SAME', newer and not held and wake
  elseif not newer and generation < known then
    result = 'OLD'
  elseif leased and score and not stored then
    append(points, member, int(point))
    result = 'FIXED'
  elseif not stored or not (score or leased) then
    result, to, newer = 'NEW', wake, true
  elseif leased then
    if not score then append(scores, now + 60000, member) end -- a live worker renews its lease before
    result = newer and 'LEASED' or 'SAME'
  elseif mode == 'reset' and stored <= now and stored <= point then
    append(scores, now, member)
    result = 'RESET'
  elseif mode == 'reset' then
    result, to = point < stored and 'REWOUND' or 'RESET', wake
  elseif stored <= now or attempts[i] then
    result = newer and 'DUE' or 'SAME'
    if newer and not attempts[i] and score > now then -- returned with a delay: it may wait for this edit
      local soon = math.max(now, point == stored and wake or now)
      append(scores, math.min(score, soon), member)
    end
  else
    result, to = newer and 'MOVED' or 'SAME', newer and wake
  end
  if to then
    append(points, member, int(point))
    append(scores, to, member)
    if holders[i] and mode ~= 'move' or attempts[i] then fresh[#fresh + 1] = member end
  end
  if newer then
    append(generations, member, int(generation))
    if priority ~= 0 then append(steps, member, int(priority)) elseif not added then plain[#plain + 1] = member end
  end
  replies[i] = result
end
forget(fresh, LEASE, ATTEMPTS)
forget(plain, PRIORITY)
if #steps > 0 then call('HSET', PRIORITY, unpack(steps)) end
if #points > 0 then call('HSET', POINT, unpack(points)) end
if #generations > 0 then call('HSET', GEN, unpack(generations)) end
if #scores > 0 then place(scores, now) end
if #gone > 0 then drop(gone) end
local first = math.huge
for i = 1, #scores, 2 do first = math.min(first, scores[i]) end
hint(first, before, ARGV[1])
return table.concat(replies, ' ')
