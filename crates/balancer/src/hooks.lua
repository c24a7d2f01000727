-- Completes the environment of a balancer; runs before it, outside its sandbox.
-- Returns the functions that the engine calls.
local environment = ...

-- Locals, because a policy may change what `math` contains.
local huge, read, write = math.huge, buffer.readf64, buffer.writef64

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

local function set_counters(ird, iwr, readdir, fetch, store)
    local e = environment
    e.IRD, e.IWR, e.READDIR, e.FETCH, e.STORE = ird, iwr, readdir, fetch, store
end

-- Calls metaload for rows of five counters. Returns the first result that is no load, if any.
local function metaloads(metaload, count, counters, loads)
    for k = 0, count - 1 do
        local at = 40 * k
        set_counters(
            read(counters, at),
            read(counters, at + 8),
            read(counters, at + 16),
            read(counters, at + 24),
            read(counters, at + 32)
        )
        local load = metaload()
        if type(load) ~= "number" or not (load >= 0 and load < huge) then
            return true, load
        end
        write(loads, 8 * k, load)
    end
    return false, nil
end

return set_counters, metaloads
