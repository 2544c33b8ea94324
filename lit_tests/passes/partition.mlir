// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding --pcp-insert-reshards --pcp-partition --pcp-verify-plan | filecheck %s

// CHECK-LABEL: module @m_0
// CHECK: dot_general {{.*}}(tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
// CHECK-NEXT: "pcp.all_reduce"(%{{.*}}) {axes = ["tp"], kind = "sum", mesh = @m, ordered}
// CHECK-LABEL: module @m_1
// CHECK: dot_general {{.*}}(tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
// CHECK-NEXT: "pcp.all_reduce"
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}, %w: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// Unequal parts, as the mesh splits its axis: nothing is padded.
// CHECK-LABEL: module @fast
// CHECK: func.func @sum(%arg0: tensor<6x2xf32>
// CHECK-LABEL: module @slow
// CHECK: func.func @sum(%arg0: tensor<2x2xf32>
// CHECK: "pcp.all_reduce"
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "fast", target = @cpu} : () -> ()
"pcp.device"() {sym_name = "slow", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@fast, @slow], split = #pcp.split<"dp", [3, 1]>, sym_name = "m"} : () -> ()
func.func @sum(%x: tensor<8x2xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// Looking up in a cut table: each member finds the rows that it has, the sum has all.
// CHECK-LABEL: module @m_1
// CHECK: stablehlo.clamp
// CHECK: stablehlo.subtract
// CHECK: "stablehlo.gather"{{.*}}tensor<5x3xf32>
// CHECK: stablehlo.select
// CHECK-NEXT: "pcp.all_reduce"
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @lookup(%table: tensor<10x3xf32> {pcp.sharding = #pcp.sharding<@m, [["tp"], []], [], []>}, %ids: tensor<4xi32>) -> tensor<4x3xf32> {
  %0 = "stablehlo.gather"(%table, %ids) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<10x3xf32>, tensor<4xi32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

// The same parts on other members travel as one message each.
// CHECK-LABEL: module @m_0
// CHECK: "pcp.permute"(%arg0) {axes = ["a", "b"], mesh = @m, ordered, pairs =
"pcp.mesh"() {axes = [#pcp.axis<"a", 2>, #pcp.axis<"b", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @exchange(%x: tensor<4xf32> {pcp.sharding = #pcp.sharding<@m, [["a"]], [], []>}) -> (tensor<4xf32> {pcp.sharding = #pcp.sharding<@m, [["b"]], [], []>}) {
  return %x : tensor<4xf32>
}

// -----

// From one dimension to another: an all-to-all.
// CHECK-LABEL: module @m_0
// CHECK: "pcp.all_to_all"(%arg0) {axes = ["a"], concat = 0 : i64, mesh = @m, ordered, split = 1 : i64} : (tensor<2x4xf32>) -> tensor<4x2xf32>
"pcp.mesh"() {axes = [#pcp.axis<"a", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @turn(%x: tensor<4x4xf32> {pcp.sharding = #pcp.sharding<@m, [["a"], []], [], []>}) -> (tensor<4x4xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["a"]], [], []>}) {
  return %x : tensor<4x4xf32>
}

// -----

// A member's own program goes through as it stands: its collective is ordered, its
// number a constant, and a constant that a whole tensor has cut is whole in it.
// CHECK-LABEL: module @m_1
// CHECK: func.func @own(%{{.*}}: tensor<4xf32>
// CHECK: stablehlo.constant dense<3.000000e+00> : tensor<4xf32>
// CHECK: "pcp.all_reduce"(%{{.*}}) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: stablehlo.constant dense<1> : tensor<ui32>
// CHECK-NOT: part
// CHECK-NOT: pcp.manual
// CHECK: return
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @own(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}, %y: tensor<4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> (tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}, tensor<4xf32>) {
  %c = stablehlo.constant dense<3.0> : tensor<4xf32>
  %whole = stablehlo.multiply %y, %c : tensor<4xf32>
  %0 = "pcp.to_part"(%x) {sharding = #pcp.sharding<@m, [["dp"]], [], []>} : (tensor<8xf32>) -> tensor<4xf32>
  %1 = stablehlo.multiply %0, %c : tensor<4xf32>
  %2 = "pcp.all_reduce"(%1) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %n = stablehlo.partition_id : tensor<ui32>
  %f = stablehlo.convert %n : (tensor<ui32>) -> tensor<f32>
  %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %3 = stablehlo.add %2, %b : tensor<4xf32>
  %4 = "pcp.from_part"(%3) {sharding = #pcp.sharding<@m, [["dp"]], [], []>} : (tensor<4xf32>) -> tensor<8xf32>
  return %4, %whole : tensor<8xf32>, tensor<4xf32>
}

// -----

// Numbers that no attribute gives out are cut in the program: complex ones, one for
// all or not, and 16 bits. What is whole on every member is not cut.
// CHECK: func.func @numbers(
// CHECK: stablehlo.slice %{{.*}} [0:2]
// CHECK: func.func @numbers(
// CHECK: %[[ALL:.*]] = stablehlo.constant {{.*}}dense<(1.000000e+00,2.000000e+00)> : tensor<4xcomplex<f32>>
// CHECK: stablehlo.slice %[[ALL]] [2:4]
// CHECK: %[[EACH:.*]] = stablehlo.constant {{.*}}: tensor<4xcomplex<f32>>
// CHECK: stablehlo.slice %[[EACH]] [2:4]
// CHECK: %[[HALF:.*]] = stablehlo.constant {{.*}}: tensor<4xbf16>
// CHECK: stablehlo.slice %[[HALF]] [2:4]
// CHECK: %[[WHOLE:.*]] = stablehlo.constant {{.*}}: tensor<3xcomplex<f32>>
// CHECK-NOT: stablehlo.slice
// CHECK: return {{.*}}, %[[WHOLE]]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @numbers(%x: tensor<4xcomplex<f32>> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}, %h: tensor<4xbf16> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> (tensor<4xcomplex<f32>>, tensor<4xbf16>, tensor<3xcomplex<f32>>) {
  %all = stablehlo.constant dense<(1.0,2.0)> : tensor<4xcomplex<f32>>
  %0 = stablehlo.multiply %x, %all : tensor<4xcomplex<f32>>
  %each = stablehlo.constant dense<[(1.0,2.0), (3.0,4.0), (5.0,6.0), (7.0,8.0)]> : tensor<4xcomplex<f32>>
  %1 = stablehlo.multiply %0, %each : tensor<4xcomplex<f32>>
  %half = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xbf16>
  %2 = stablehlo.multiply %h, %half : tensor<4xbf16>
  %whole = stablehlo.constant dense<[(1.0,2.0), (3.0,4.0), (5.0,6.0)]> : tensor<3xcomplex<f32>>
  return %1, %2, %whole : tensor<4xcomplex<f32>>, tensor<4xbf16>, tensor<3xcomplex<f32>>
}
