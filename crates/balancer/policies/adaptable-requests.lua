-- Adaptable (Listing 4) by requests: the load of a rank is its rate of requests of the last two
-- seconds, without decay. Follows load that moves on within a minute.

function when()
    local most = 0
    for i = 1, #MDSs do
        most = max(MDSs[i]["load"], most)
    end
    local own = MDSs[whoami]["load"]
    return own > total / 2 and own >= most
end

function mdsload(i)
    return MDSs[i]["req"]
end
