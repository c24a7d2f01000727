-- Fill & Spill (Listing 3): a rank sends a quarter of its load to the next one when its
-- processor has been busy for three ticks in a row. Uses few ranks.

local BUSY_CPU = 48
local TICKS = 3

function metaload()
    return IRD + IWR
end

function mdsload(i)
    return MDSs[i]["all"]
end

-- The saved state counts ticks above the limit.
function when()
    if MDSs[whoami]["cpu"] <= BUSY_CPU then
        WRstate(0)
        return false
    end
    local busy = RDstate() + 1
    WRstate(busy % TICKS)
    return busy == TICKS and whoami < #MDSs
end

function where()
    targets[whoami + 1] = MDSs[whoami]["load"] / 4
end

howmuch = { "big_first", "small_first", "big_small" }
