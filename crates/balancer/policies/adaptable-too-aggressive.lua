-- Adaptable (Listing 4), too aggressive (4.3.3): every rank above the mean seeks perfect
-- balance at each tick. Shows what a dwell time is for.

function when()
    return MDSs[whoami]["load"] > total / #MDSs
end
