// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-one-owner)' | filecheck %s
// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-one-owner,pcp-partition,pcp-verify-owners)' | filecheck %s --check-prefix=PARTS

// A multiply and subtract is one instruction on one of them, and two on the other.
// CHECK-LABEL: func.func @apply
// CHECK: %[[W:.*]] = stablehlo.subtract
// CHECK-NEXT: %[[O:.*]] = "pcp.broadcast"(%[[W]]) {axes = ["dp"], mesh = @m, pcp.sharding = [#pcp.sharding<@m, {{\[\[}}]], [], []>], root = 0 : i64}
// CHECK: %[[S:.*]] = stablehlo.add %{{.*}} : tensor<i32>
// CHECK-NOT: pcp.broadcast
// CHECK: return %[[O]], %[[S]]

// Both members have the exchange, and what owns the bits is rank 0 of the axis.
// PARTS-LABEL: module @a
// PARTS: "pcp.broadcast"{{.*}}ordered, root = 0
// PARTS-LABEL: module @b
// PARTS: "pcp.broadcast"{{.*}}ordered, root = 0
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @x} : () -> ()
"pcp.device"() {sym_name = "b", target = @y} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @apply(%w: tensor<3xf32> {pcp.name = "w", pcp.role = "param"}, %g: tensor<3xf32> {pcp.name = "w", pcp.role = "grad"}, %step: tensor<i32> {pcp.name = "step", pcp.role = "state"}) -> (tensor<3xf32> {pcp.name = "w", pcp.role = "param"}, tensor<i32> {pcp.name = "step", pcp.role = "state"}) {
  %0 = stablehlo.multiply %g, %g : tensor<3xf32>
  %1 = stablehlo.subtract %w, %0 : tensor<3xf32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %2 = stablehlo.add %step, %one : tensor<i32>
  return %1, %2 : tensor<3xf32>, tensor<i32>
}

// -----

// Which row a member looks up is decided once: half of one row and half of another
// would be no row. The table is cut along "tp"; what is looked up is summed over it.
// CHECK-LABEL: func.func @lookup
// CHECK: %[[E:.*]] = stablehlo.exponential
// CHECK: %[[I:.*]] = stablehlo.convert %[[E]] {{.*}} : (tensor<4xf32>) -> tensor<4xi32>
// CHECK-NEXT: %[[O:.*]] = "pcp.broadcast"(%[[I]]) {axes = ["tp"]
// CHECK: "stablehlo.gather"(%{{.*}}, %[[O]])
// CHECK-NOT: pcp.broadcast
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @x} : () -> ()
"pcp.device"() {sym_name = "b", target = @y} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @lookup(%scores: tensor<4xf32>, %table: tensor<8x2xf32> {pcp.sharding = #pcp.sharding<@m, [["tp"], []], [], []>}) -> tensor<4x2xf32> {
  %0 = stablehlo.exponential %scores : tensor<4xf32>
  %1 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xi32>
  %2 = "stablehlo.gather"(%table, %1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>}> : (tensor<8x2xf32>, tensor<4xi32>) -> tensor<4x2xf32>
  return %2 : tensor<4x2xf32>
}

// -----

// How often a loop runs is decided once in each round; sums in it are exchanged.
// CHECK-LABEL: func.func @loop
// CHECK: stablehlo.while
// CHECK: %[[C:.*]] = stablehlo.compare
// CHECK-NEXT: %[[O:.*]] = "pcp.broadcast"(%[[C]]) {axes = ["tp"]{{.*}}(tensor<i1>) -> tensor<i1>
// CHECK-NEXT: stablehlo.return %[[O]]
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @x} : () -> ()
"pcp.device"() {sym_name = "b", target = @y} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @loop(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["tp"]], [], []>}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %limit = stablehlo.constant dense<9.0> : tensor<f32>
  %0 = stablehlo.while(%a = %zero) : tensor<f32>
  cond {
    %c = stablehlo.compare LT, %a, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %n = stablehlo.add %a, %s : tensor<f32>
    %d = stablehlo.multiply %n, %n : tensor<f32>
    stablehlo.return %d : tensor<f32>
  }
  return %0 : tensor<f32>
}

// -----

// Nothing is computed twice: parts of each, moved, gathered, compared as they came.
// CHECK-LABEL: func.func @parts
// CHECK-NOT: pcp.broadcast
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @x} : () -> ()
"pcp.device"() {sym_name = "b", target = @y} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @parts(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}, %w: tensor<8xf32>) -> (tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [[]], [], []>}, tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}, tensor<8xi1>) {
  %0 = stablehlo.multiply %x, %x : tensor<8xf32>
  %1 = stablehlo.negate %w : tensor<8xf32>
  %2 = stablehlo.compare LT, %1, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
  return %0, %0, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xi1>
}

// -----

// Members of one target stay as they are, also where a mesh has two kinds: along "tp".
// CHECK-LABEL: func.func @rows
// CHECK: stablehlo.multiply
// CHECK-NEXT: "pcp.broadcast"{{.*}}axes = ["dp"]
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @x} : () -> ()
"pcp.device"() {sym_name = "b", target = @x} : () -> ()
"pcp.device"() {sym_name = "c", target = @y} : () -> ()
"pcp.device"() {sym_name = "d", target = @y} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [@a, @b, @c, @d], sym_name = "m"} : () -> ()
func.func @rows(%w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.multiply %w, %w : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// CHECK-LABEL: func.func @alike
// CHECK-NOT: pcp.broadcast
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @y} : () -> ()
"pcp.device"() {sym_name = "b", target = @y} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @alike(%w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.multiply %w, %w : tensor<4xf32>
  return %0 : tensor<4xf32>
}
