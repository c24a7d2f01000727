-- Adaptable (Listing 4): the rank with most of the load in the cluster fills the others up to
-- the mean.

function when()
    local most = 0
    for i = 1, #MDSs do
        most = max(MDSs[i]["load"], most)
    end
    local own = MDSs[whoami]["load"]
    return own > total / 2 and own >= most
end
