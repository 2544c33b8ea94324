// RUN: pcp-opt %s --split-input-file --verify-diagnostics

// expected-error@below {{needs the attribute 'arch', a string}}
"pcp.target"() {caps = {}, driver = "cuda", sym_name = "t"} : () -> ()

// -----

// expected-error@below {{attribute 'caps' must be a dictionary, not []}}
"pcp.target"() {arch = "sm_90", caps = [], driver = "cuda", sym_name = "t"} : () -> ()

// -----

// expected-error@below {{does not know driver "opencl" (drivers: local, cuda, hip, vulkan, metal)}}
"pcp.target"() {arch = "x", caps = {}, driver = "opencl", sym_name = "t"} : () -> ()

// -----

// expected-error@below {{driver "cuda" has no architecture "gfx942"}}
"pcp.target"() {arch = "gfx942", caps = {}, driver = "cuda", sym_name = "t"} : () -> ()

// -----

// expected-error@below {{has 0 bytes of memory}}
"pcp.device"() {memory = 0, sym_name = "d", target = @t} : () -> ()

// -----

// expected-error@below {{has ordinal -1; ordinals count from 0}}
"pcp.device"() {ordinal = -1, sym_name = "d", target = @t} : () -> ()

// -----

// expected-error@below {{has a memory bandwidth that is not positive}}
"pcp.device"() {membw = 0.0, sym_name = "d", target = @t} : () -> ()

// -----

// expected-error@below {{has a bandwidth of exchanges that is not positive}}
"pcp.device"() {exchange_bw = -1.0, sym_name = "d", target = @t} : () -> ()

// -----

// expected-error@below {{has a negative exchange_ns}}
"pcp.device"() {exchange_ns = -1.0, sym_name = "d", target = @t} : () -> ()

// -----

// expected-error@below {{says alone = {membw}: throughput and membw}}
"pcp.device"() {alone = {membw = 1.0}, sym_name = "d", target = @t} : () -> ()

// -----

// expected-error@below {{has a throughput of 0 in f32}}
"pcp.device"() {sym_name = "d", target = @t, throughput = {f32 = 0.0}} : () -> ()

// -----

// expected-error@below {{'throughput of f32' must be a number}}
"pcp.device"() {sym_name = "d", target = @t, throughput = {f32 = "fast"}} : () -> ()

// -----

// expected-error@below {{attribute 'memory' must be an integer, not "much"}}
"pcp.device"() {memory = "much", sym_name = "d", target = @t} : () -> ()

// -----

// expected-error@below {{attribute 'target' must be a symbol such as @name}}
"pcp.device"() {sym_name = "d", target = "t"} : () -> ()

// -----

// expected-error@below {{connects two devices, not 3}}
"pcp.link"() {bandwidth = 1, ends = [@a, @b, @c], latency_ns = 1} : () -> ()

// -----

// expected-error@below {{connects @a with itself}}
"pcp.link"() {bandwidth = 1, ends = [@a, @a], latency_ns = 1} : () -> ()

// -----

// expected-error@below {{must hold symbols, as in [@a, @b]}}
"pcp.link"() {bandwidth = 1, ends = ["a", "b"], latency_ns = 1} : () -> ()

// -----

// expected-error@below {{has a bandwidth that is not positive}}
"pcp.link"() {bandwidth = 0, ends = [@a, @b], latency_ns = 1} : () -> ()

// -----

// expected-error@below {{has a negative latency}}
"pcp.link"() {bandwidth = 1, ends = [@a, @b], latency_ns = -1.0} : () -> ()

// -----

// expected-error@below {{duplex is "full" or "half", not "double"}}
"pcp.link"() {bandwidth = 1, duplex = "double", ends = [@a, @b], latency_ns = 1} : () -> ()

// -----

// expected-error@below {{needs at least one axis}}
"pcp.mesh"() {axes = [], devices = [], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{axes are written #pcp.axis<"dp", 2>, not "dp"}}
"pcp.mesh"() {axes = ["dp"], devices = [], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{axis "dp" occurs twice}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{an axis needs a name}}
"pcp.mesh"() {axes = [#pcp.axis<"", 2>], devices = [], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{axis "dp" has size 0; a size is at least 1, or -1 for elastic}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 0>], devices = [], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{lists device @a twice}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @a], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{has 4 places for 2 devices}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{axis "workers" is elastic: its devices are not listed}}
"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [@a], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{a split is written #pcp.split<"dp", [6, 2]>, not 6 : i64}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], split = [6, 2], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{the split names axis "tp", which the mesh has not}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], split = #pcp.split<"tp", [6, 2]>, sym_name = "m"} : () -> ()

// -----

// expected-error@below {{the split of axis "dp" has 3 sizes for 2 members}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], split = #pcp.split<"dp", [6, 2, 1]>, sym_name = "m"} : () -> ()

// -----

// expected-error@below {{a split's sizes are at least 0}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], split = #pcp.split<"dp", [6, -2]>, sym_name = "m"} : () -> ()

// -----

// expected-error@below {{a split's sizes are all 0}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], split = #pcp.split<"dp", [0, 0]>, sym_name = "m"} : () -> ()

// -----

// expected-error@+1 {{expected 2 type arguments, but had 1}}
"pcp.mesh"() {axes = [#pcp.axis<"dp">], devices = [], sym_name = "m"} : () -> ()

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> () // expected-note {{see existing symbol definition here}}
// expected-error@below {{redefinition of symbol named 'm'}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
