-- Prelude of every script, after the KEYS of its kind.
-- Integers leave through int(): tostring() loses digits above 2^53's decimals. The server's TIME is the only clock.
local call = redis.call

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

-- No lease and no backoff reaches so far ahead: such a score was damaged, and is not that of a lease.
local function unsound(score, now) return score > now + 2 * 3600 * 1000 end

local function head() return call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or '' end

-- Tell sleeping workers of an earlier head: the message is '<place> <score>', so that they need not ask. Return the head.
local function hint(before, channel, place)
  local after = head()
  if after ~= '' and (before == '' or tonumber(after) < tonumber(before)) then
    call('PUBLISH', channel, place .. ' ' .. after)
  end
  return after
end
