// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --symbol-dce --canonicalize --cse | filecheck %s

// CHECK: "pcp.target"() {arch = "sm_90a", caps = {}, driver = "cuda", sym_name = "h100"} : () -> ()
"pcp.target"() {sym_name = "h100", arch = "sm_90a", driver = "cuda", caps = {}} : () -> ()
// CHECK: "pcp.target"() {arch = "x86_64", caps = {f32 = 2.000000e+11 : f64}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.target"() {sym_name = "cpu", arch = "x86_64", driver = "local", caps = {f32 = 2.0e11}} : () -> ()
// CHECK: "pcp.target"() {arch = "gfx942", {{.*}}driver = "hip"
"pcp.target"() {sym_name = "mi300", arch = "gfx942", driver = "hip", caps = {}} : () -> ()

// CHECK: "pcp.device"() {host = "a", membw = 3.000000e+12 : f64, memory = 80000000000 : i64, ordinal = 0 : i64, sym_name = "d0", target = @h100, throughput = {f32 = 5.000000e+13 : f64}}
"pcp.device"() {sym_name = "d0", target = @h100, host = "a", ordinal = 0, memory = 80000000000, throughput = {f32 = 5.0e13}, membw = 3.0e12} : () -> ()
// CHECK: "pcp.device"() {sym_name = "d1", target = @cpu}
"pcp.device"() {sym_name = "d1", target = @cpu} : () -> ()
// CHECK: "pcp.link"() {bandwidth = 1.250000e+09 : f64, duplex = "full", ends = [@d0, @d1], latency_ns = 20000 : i64}
"pcp.link"() {ends = [@d0, @d1], bandwidth = 1.25e9, latency_ns = 20000, duplex = "full"} : () -> ()

// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"dp", 2 : i64>, #pcp.axis<"tp", 1 : i64>], devices = [@d0, @d1], split = #pcp.split<"dp", [6, 2]>, sym_name = "m"}
"pcp.mesh"() {sym_name = "m", axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 1>], devices = [@d0, @d1], split = #pcp.split<"dp", [6, 2]>} : () -> ()
// CHECK: "pcp.mesh"() {{.*}}split = [#pcp.split<"dp", [1, 3]>, #pcp.split<"tp", [2, 2]>]
"pcp.mesh"() {sym_name = "n", axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], split = [#pcp.split<"dp", [1, 3]>, #pcp.split<"tp", [2, 2]>]} : () -> ()
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"workers", -1 : i64>], devices = [], sym_name = "w"}
"pcp.mesh"() {sym_name = "w", axes = [#pcp.axis<"workers", -1>], devices = []} : () -> ()
