-- Sends a share of the load to the least loaded host, after some ticks in a row in which this
-- host had much more load than that one.

-- Requests a second that a host must have more than the least loaded one.
local SURPLUS = 10

function metaload()
    return IRD
end

function mdsload(i)
    return MDSs[i]["req"]
end

-- The saved state counts ticks with a surplus.
function when()
    least = whoami
    for i = 1, #MDSs do
        if MDSs[i]["load"] < MDSs[least]["load"] then
            least = i
        end
    end
    if MDSs[whoami]["load"] <= 2 * MDSs[least]["load"] + SURPLUS then
        WRstate(0)
        return false
    end
    local overloaded = RDstate() + 1
    WRstate(overloaded % TICKS)
    return overloaded >= TICKS
end

function where()
    targets[least] = MDSs[whoami]["load"] * SHARE
end

howmuch = { "big_first", "small_first", "half" }
