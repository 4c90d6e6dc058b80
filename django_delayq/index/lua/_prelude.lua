-- Prelude of every script. KEYS is always the same list, see index/keys.py: no key name is built in Lua.
-- Integers leave through int(), since tostring() loses digits and Redis may write 1e+12; scores are numbers, which ZADD
-- takes exactly. The server's TIME is the only clock.
local call = redis.call
local DUE, READY, JOBS, JOBS_READY, POINT, GEN, PRIORITY, LEASE, ATTEMPTS, EPOCH, JOURNAL = unpack(KEYS)

-- Note [Lanes]
-- Schedules' points and orders are one lane, jobs and backfills the other: each claim takes of both, so a million due
-- jobs delay a due point by a claim. A member waits in DUE or JOBS, by the ms at which it needs attention, and is claimed
-- in that order. While a member of the shard has a priority, what is due moves on into READY or JOBS_READY, by its turn:
-- that ms, less a minute for each step of its priority. A member is in one of the two, never in both, and never in none.
local LANES = {{DUE, READY}, {JOBS, JOBS_READY}}
-- One step of priority is worth so many ms of waiting.
local STEP_MS = 60000

local function lane_of(member) return string.sub(member, 1, 1) == 'j' and 2 or 1 end

local function int(number) return string.format('%.0f', number) end

-- A whole number that Lua holds exactly, or nil for nothing and for garbage (nan, inf, text).
local function whole(text)
  local number = tonumber(text or '')
  if number and number >= 0 and number < 2 ^ 53 then return math.floor(number) end
end

local function server_ms()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function append(list, a, b) list[#list + 1], list[#list + 2] = a, b end

-- No lease and no backoff reaches so far ahead: such a score was damaged, and is not that of a lease.
local function unsound(score, now) return score > now + 2 * 3600 * 1000 end

-- The ms at which the shard needs attention next, '' for never: now, where a member has its turn.
local function head(now)
  local found = call('EXISTS', READY, JOBS_READY) > 0 and now or math.huge
  for _, keys in ipairs(LANES) do
    found = math.min(found, tonumber(call('ZRANGE', keys[1], 0, 0, 'WITHSCORES')[2] or found))
  end
  return found < 2 ^ 53 and int(math.max(0, found)) or '' -- a damaged score: below 0 it is due, from 2^53 on never
end

-- Tell sleeping workers of an earlier head: the message is '<queue>:<shard> <score>', so that they need not ask.
local function hint(after, before, channel)
  if after < (tonumber(before) or math.huge) then
    call('PUBLISH', channel, string.match(DUE, '([^:{]+:%d+)}') .. ' ' .. int(after))
  end
end

-- The scores of members, by their places in the list; 0 of those whose turn it is, nil of those that are not there.
local function scores_of(members)
  local found, names, places = {}, {{}, {}}, {{}, {}}
  for i, member in ipairs(members) do
    append(names[lane_of(member)], member)
    append(places[lane_of(member)], i)
  end
  for lane, keys in ipairs(LANES) do
    if #names[lane] > 0 then
      local ready = call('EXISTS', keys[2]) == 1 and call('ZMSCORE', keys[2], unpack(names[lane])) or {}
      for i, score in ipairs(call('ZMSCORE', keys[1], unpack(names[lane]))) do
        found[places[lane][i]] = tonumber(score or '') or (ready[i] and 0 or nil)
      end
    end
  end
  return found
end

-- The priorities of members, 0 for most.
local function steps_of(members)
  local steps = #members > 0 and call('EXISTS', PRIORITY) == 1 and call('HMGET', PRIORITY, unpack(members)) or {}
  for i = 1, #members do steps[i] = tonumber(steps[i] or '') or 0 end
  return steps
end

-- Give members these scores: scores and members in a row, as ZADD takes them. Their points and priorities are written
-- before. What is due and urgent gets its turn at once, or it would wait behind all that nothing has claimed yet.
local function place(scores, now)
  local own = {{}, {}}
  for i = 1, #scores, 2 do append(own[lane_of(scores[i + 1])], scores[i], scores[i + 1]) end
  for lane, list in ipairs(own) do
    local waiting, ready, names, due, later = LANES[lane][1], LANES[lane][2], {}, {}, list
    if #list > 0 and call('EXISTS', ready, PRIORITY) > 0 then
      for i = 2, #list, 2 do names[#names + 1] = list[i] end
      local by_turn, steps = call('ZREM', ready, unpack(names)) > 0 or call('EXISTS', ready) == 1, steps_of(names)
      later = {}
      for i, member in ipairs(names) do
        local score = tonumber(list[2 * i - 1])
        if score > now or not by_turn and steps[i] <= 0 then append(later, score, member) else
          append(due, score - steps[i] * STEP_MS, member)
          call('ZREM', waiting, member)
        end
      end
    end
    if #later > 0 then call('ZADD', waiting, unpack(later)) end
    if #due > 0 then call('ZADD', ready, unpack(due)) end
  end
end

-- Delete what these hashes have of members.
local function forget(members, ...)
  for _, key in ipairs(#members > 0 and {...} or {}) do call('HDEL', key, unpack(members)) end
end

local function drop(members)
  forget(members, POINT, GEN, PRIORITY, LEASE, ATTEMPTS)
  -- Also from the lane where it does not belong: a stranger may have put it there.
  for _, key in ipairs({DUE, READY, JOBS, JOBS_READY}) do call('ZREM', key, unpack(members)) end
end

-- Note [One text]
-- Arguments and replies with several values for each member are one text of JSON. redis-py sends it in a seventh of the
-- time that the single values take, and reads it in a tenth. A row is the list of one member's values.

-- Note [Leases]
-- A lease is a field in a hash: member -> holder, which is the fence of the claim, a space, its worker. Whoever settles
-- or renews names the holder. A claim gives one fence to all that it leases: when it was, a dot, and random text.
-- It notes the members in the journal of its process, each with whether another worker's lease on it had run out: where
-- its reply is lost, the next claim carries the same request, and is told once more what is still leased so.

-- The rows of the last argument, of each its member, which comes first, and the holder of that, false for none.
local function named()
  local rows, members = cjson.decode(ARGV[#ARGV]), {}
  for i, row in ipairs(rows) do members[i] = row[1] end
  return rows, members, #rows > 0 and call('HMGET', LEASE, unpack(members)) or {}
end
