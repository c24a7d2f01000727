-- Adaptable (Listing 4): the rank with most of the load in the cluster fills the others up to
-- the mean.

function metaload()
    return IWR + IRD
end

function mdsload(i)
    return MDSs[i]["all"]
end

function when()
    local most = 0
    for i = 1, #MDSs do
        most = max(MDSs[i]["load"], most)
    end
    local own = MDSs[whoami]["load"]
    return own > total / 2 and own >= most
end

function where()
    local mean = total / #MDSs
    for i = 1, #MDSs do
        if MDSs[i]["load"] < mean then
            targets[i] = mean - MDSs[i]["load"]
        end
    end
end

howmuch = { "half", "small_first", "big_first", "big_small" }
