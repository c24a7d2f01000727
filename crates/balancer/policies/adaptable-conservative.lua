-- Adaptable (Listing 4), conservative (4.3.3): only if at least a minimum of load would move.
-- All metadata stays at one rank until there is a spike.

local OFFLOAD_MIN = 1000

function when()
    local most = 0
    for i = 1, #MDSs do
        most = max(MDSs[i]["load"], most)
    end
    local own = MDSs[whoami]["load"]
    return own > total / 2 and own >= most and own - total / #MDSs >= OFFLOAD_MIN
end
