-- Completes the environment of a balancer; runs before it, outside its sandbox.
-- Returns the function that computes metadata loads: it calls metaload for rows of five counters
-- and returns the first result that is no load, if any.
local environment = ...

-- A local, because a policy may change what `math` contains.
local huge = math.huge

-- Table 4.1, for policies that leave these out.
function environment.metaload()
    local e = environment
    return e.IRD + 2 * e.IWR + e.READDIR + 2 * e.FETCH + 4 * e.STORE
end

function environment.mdsload(i)
    local metrics = environment.MDSs[i]
    return 0.8 * metrics.auth + 0.2 * metrics.all + metrics.req + 10 * metrics.q
end

environment.howmuch = { "big_first" }

-- The reads and writes are inlined only if they are spelt like this.
local function metaloads(metaload, count, counters, loads)
    local e = environment
    for k = 0, count - 1 do
        local at = 40 * k
        e.IRD = buffer.readf64(counters, at)
        e.IWR = buffer.readf64(counters, at + 8)
        e.READDIR = buffer.readf64(counters, at + 16)
        e.FETCH = buffer.readf64(counters, at + 24)
        e.STORE = buffer.readf64(counters, at + 32)
        local load = metaload()
        if type(load) ~= "number" or not (load >= 0 and load < huge) then
            return true, load
        end
        buffer.writef64(loads, 8 * k, load)
    end
    return false, nil
end

return metaloads
