// RUN: sed 's/COMPUTE/f8E4M3FN/; s/WIRE/f32/' %s | not pcp-opt - --pcp-device-precision 2>&1 | filecheck %s --check-prefix=TYPE
// RUN: sed 's/COMPUTE/bf16/; s/WIRE/bf16/' %s | not pcp-opt - --pcp-device-precision 2>&1 | filecheck %s --check-prefix=WIRE
// RUN: sed 's/COMPUTE/bf16/; s/WIRE/f32/' %s | not pcp-opt - --pcp-device-precision 2>&1 | filecheck %s --check-prefix=UNCUT
// RUN: sed 's/#pcp.precision<COMPUTE, f32, WIRE>/"bf16"/' %s | not pcp-opt - --pcp-device-precision 2>&1 | filecheck %s --check-prefix=KIND
// RUN: sed 's/COMPUTE/bf16/; s/WIRE/f32/; s/@half, @full/@other, @full/; s/"pcp.device"() {sym_name = "half", \(.*\)} : .*/module @half attributes {pcp.device = {\1}} {}/' %s | not pcp-opt - --pcp-device-precision 2>&1 | filecheck %s --check-prefix=MESH

// TYPE: computes in f8E4M3FN; a device computes in f32, bf16, f16
// WIRE: accumulates in f32 and sends bf16; both are f32
// UNCUT: pcp.device: its program is not cut out yet; run pcp-partition first
// KIND: a precision is written #pcp.precision<bf16, f32, f32>, not "bf16"
// MESH: @half has a precision and is in no mesh (devices of meshes: other, full)
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "half", target = @cpu, precision = #pcp.precision<COMPUTE, f32, WIRE>} : () -> ()
"pcp.device"() {sym_name = "full", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@half, @full], sym_name = "m"} : () -> ()
