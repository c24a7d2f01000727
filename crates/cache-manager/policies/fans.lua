-- Sizes the cache by the current group of accesses, a "fan" (Fig. 5.15). Keys are numbered as
-- they appear, so that a new fan has higher keys than the ones before.
--
-- A fan begins where all later accesses have higher keys than all earlier ones. It counts from
-- the next tick on: until then it may be a new key of the old fan.

local TICK_S = 1

function when()
    local accesses = timeseries()
    local count = accesses:size()
    -- Highest key up to an access.
    local highest = { [0] = -1 }
    for i = 1, count do
        local _, key = accesses:get(i)
        highest[i] = max(highest[i - 1], key)
    end
    local lowest = math.huge
    for i = count, 2, -1 do
        local seconds, key = accesses:get(i)
        lowest = min(lowest, key)
        if highest[i - 1] < lowest and accesses:get(count) - seconds >= TICK_S then
            size = highest[count] - lowest + 1
            return servers[whoami]["cachesize"] > size
        end
    end
    return false
end

function howmuch()
    servers[whoami]["cachesize"] = size
end
