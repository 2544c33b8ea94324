// RUN: pcp-opt %s --split-input-file --pcp-import | filecheck %s
// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding --pcp-insert-reshards --pcp-partition --pcp-verify-plan | filecheck %s --check-prefix=PLAN

// Meshes over the same devices become one: an axis of the second is a run of parts of
// the first one's axes, also where both have axes of one name.
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"x", 2 : i64>, #pcp.axis<"y:(1)2", 2 : i64>, #pcp.axis<"y:(2)2", 2 : i64>], devices = [], sym_name = "a"}
// CHECK-NOT: pcp.mesh
// CHECK-LABEL: func.func @main
// CHECK-SAME: #pcp.sharding<@a, {{\[\[}}"x"], ["y:(1)2", "y:(2)2"]], [], []>
// CHECK-SAME: #pcp.sharding<@a, {{\[\[}}"x", "y:(1)2"], []], [], []>
// CHECK: "pcp.constraint"(%{{.*}}) {sharding = #pcp.sharding<@a, {{\[\[}}"y:(2)2"], #pcp.dim<["x", "y:(1)2"], 0 : i64, 0 : i64>], [], []>}
// CHECK: "pcp.all_reduce"(%{{.*}}) {axes = ["x", "y:(1)2"], kind = "max", mesh = @a}
// PLAN: module @a_7
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>, #pcp.axis<"y", 4>], devices = [], sym_name = "a"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"y", 4>, #pcp.axis<"q", 2>], devices = [], sym_name = "b"} : () -> ()
func.func @main(%x: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@a, [["x"], ["y"]], [], []>},
                %w: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@b, [["y"], []], [], []>}) -> tensor<8x8xf32> {
  %0 = stablehlo.add %x, %w : tensor<8x8xf32>
  %1 = "pcp.constraint"(%0) {sharding = #pcp.sharding<@b, [["q"], #pcp.dim<["y"], 0, 0>], [], []>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %p = "pcp.to_part"(%1) {sharding = #pcp.sharding<@b, [["q"], []], [], []>} : (tensor<8x8xf32>) -> tensor<4x8xf32>
  %r = "pcp.all_reduce"(%p) {axes = ["y"], kind = "max", mesh = @b} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "pcp.from_part"(%r) {sharding = #pcp.sharding<@b, [["q"], []], [], []>} : (tensor<4x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// Listed devices have to be the same, and an axis of one member is none.
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"x", 2 : i64>], devices = [@d0, @d1], sym_name = "a"}
// CHECK-NOT: pcp.mesh
// CHECK-LABEL: func.func @listed
// CHECK-SAME: #pcp.sharding<@a, {{\[\[}}"x"], []], [], []>
// PLAN: module @d1
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {host = "h", membw = 1.0e9, memory = 1000000, ordinal = 0, sym_name = "d0", target = @cpu, throughput = {f32 = 1.0e9}} : () -> ()
"pcp.device"() {host = "h", membw = 1.0e9, memory = 1000000, ordinal = 1, sym_name = "d1", target = @cpu, throughput = {f32 = 1.0e9}} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [@d0, @d1], sym_name = "a"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"one", 1>, #pcp.axis<"n", 2>], devices = [@d0, @d1], sym_name = "b"} : () -> ()
func.func @listed(%x: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@b, [["n"], ["one"]], [], []>}) -> tensor<8x8xf32> {
  %0 = stablehlo.add %x, %x : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
