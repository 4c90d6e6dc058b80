-- Prelude of every script. KEYS is the list of index/keys.py: Lua never builds a key name. Integers are returned
-- through int(), since tostring() loses digits and Redis may write 1e+12; scores are numbers, which ZADD takes
-- exactly. The server's TIME is the only clock.
local call = redis.call
local DUE, READY, JOBS, JOBS_READY, POINT, GEN, PRIORITY, LEASE, ATTEMPTS, EPOCH, JOURNAL = unpack(KEYS)

-- Note [Two lanes per claim]
-- Due points and manual runs are one lane, jobs and backfilled points the other. A claim takes from both, so that a
-- million due jobs delay a due point by one claim at most. A member waits in DUE or JOBS, scored by the ms at which it
-- needs attention, and is claimed in that sequence. While any member of the shard has a priority, due members move on
-- to READY or JOBS_READY, scored by their turn: that ms minus one minute per step of priority. A member is in exactly
-- one of these keys.
local LANES = {{DUE, READY}, {JOBS, JOBS_READY}}
-- Ms of waiting that one step of priority is worth.
local STEP_MS = 60000

local function lane_of(member) return string.sub(member, 1, 1) == 'j' and 2 or 1 end

local function int(number) return string.format('%.0f', number) end

-- An integer that Lua holds exactly; nil for nothing and for garbage (nan, inf, text).
local function whole(text)
  local number = tonumber(text or '')
  if number and number >= 0 and number < 2 ^ 53 then return math.floor(number) end
end

local function server_ms()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function append(list, a, b) list[#list + 1], list[#list + 2] = a, b end

-- True if a score is damaged: no lease and no backoff extends this far.
local function unsound(score, now) return score > now + 2 * 3600 * 1000 end

-- The ms at which the shard needs attention next, '' for never; now, if a member is ready.
local function head(now)
  local found = call('EXISTS', READY, JOBS_READY) > 0 and now or math.huge
  for _, keys in ipairs(LANES) do
    found = math.min(found, tonumber(call('ZRANGE', keys[1], 0, 0, 'WITHSCORES')[2] or found))
  end
  return found < 2 ^ 53 and int(math.max(0, found)) or '' -- a damaged score: below 0 it is due, from 2^53 on never
end

-- Notify sleeping workers of an earlier head by '<queue>:<shard> <score>', so that they need not query it.
local function hint(after, before, channel)
  if after < (tonumber(before) or math.huge) then
    call('PUBLISH', channel, string.match(DUE, '([^:{]+:%d+)}') .. ' ' .. int(after))
  end
end

-- The scores of members, by index; 0 for ready members, nil for absent ones.
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

-- Set scores, given in the sequence of ZADD: score, member, ... Points and priorities must be written before. Due
-- members with a priority get their turn here; otherwise they would wait behind all members that no claim has moved
-- yet.
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

-- Delete members from these hashes.
local function forget(members, ...)
  for _, key in ipairs(#members > 0 and {...} or {}) do call('HDEL', key, unpack(members)) end
end

local function drop(members)
  forget(members, POINT, GEN, PRIORITY, LEASE, ATTEMPTS)
  -- From both lanes: another program may have added it to the wrong one.
  for _, key in ipairs({DUE, READY, JOBS, JOBS_READY}) do call('ZREM', key, unpack(members)) end
end

-- Note [Values as one JSON text]
-- Arguments and replies with several values per member are one JSON text: redis-py sends it in a seventh, and reads it
-- in a tenth, of the time of single values. A row is the list of one member's values.

-- Note [A lease names its holder]
-- A lease is a field in a hash: member -> holder, which is the claim's fence, a space, its worker. To settle or renew,
-- the caller names the holder. All leases of a claim have one fence: its time, a dot, random text. The claim writes
-- its members to the journal of its process, each with whether another worker's lease on it had run out. After a lost
-- reply, the next claim repeats the request and gets the members that are still leased under that fence.

-- The rows of the last argument, their members (first in each row) and the holders of these, false for none.
local function named()
  local rows, members = cjson.decode(ARGV[#ARGV]), {}
  for i, row in ipairs(rows) do members[i] = row[1] end
  return rows, members, #rows > 0 and call('HMGET', LEASE, unpack(members)) or {}
end
