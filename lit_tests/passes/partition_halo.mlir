// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding --pcp-insert-reshards --pcp-partition --pcp-verify-plan | filecheck %s
// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding=explain=true | filecheck %s --check-prefix=WHY

// A convolution over cut rows: each member gets a row of both neighbours, and only
// those at the border of the whole pad. Parts are 3, 3, 2 and 2 rows.
// CHECK-LABEL: func.func @rows(
// CHECK: %[[DOWN:.*]] = stablehlo.slice %arg0 [0:2, 2:3, 0:3]
// CHECK-NEXT: "pcp.permute"(%[[DOWN]]) {axes = ["rows"], mesh = @m, ordered, {{.*}}0, 1{{.*}}1, 2{{.*}}2, 3{{.*}} : (tensor<2x1x3xf32>)
// CHECK: %[[BELOW:.*]] = "pcp.permute"(%{{.*}}) {axes = ["rows"], mesh = @m, ordered, {{.*}}1, 0{{.*}}2, 1{{.*}}3, 2
// CHECK-NEXT: stablehlo.concatenate %arg0, %[[BELOW]], dim = 1 : {{.*}} -> tensor<2x4x3xf32>
// CHECK-NEXT: stablehlo.convolution{{.*}}pad = {{.*}}1, 0{{.*}} -> tensor<2x3x5xf32>
// CHECK-NOT: pcp.all_gather
// CHECK: module @m_1
// CHECK: stablehlo.concatenate {{.*}} -> tensor<2x5x3xf32>
// CHECK-NEXT: stablehlo.convolution{{.*}}pad = {{.*}}0, 0{{.*}} -> tensor<2x3x5xf32>
// CHECK: module @m_3
// CHECK: stablehlo.concatenate {{.*}} -> tensor<2x3x3xf32>
// CHECK-NEXT: stablehlo.convolution{{.*}}pad = {{.*}}0, 1{{.*}} -> tensor<2x2x5xf32>
// WHY: pcp.why = ["dim 1 by rows: stablehlo.convolution at {{.*}}, with a halo"]
"pcp.mesh"() {axes = [#pcp.axis<"rows", 4>], devices = [], sym_name = "m"} : () -> ()
func.func @rows(%x: tensor<2x10x3xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["rows"], []], [], []>}, %k: tensor<3x3x5xf32>) -> tensor<2x10x5xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x10x3xf32>, tensor<3x3x5xf32>) -> tensor<2x10x5xf32>
  return %0 : tensor<2x10x5xf32>
}

// -----

// The gradient of its kernel: a sum over rows, of which each member has a part.
// CHECK-LABEL: func.func @kernel(
// CHECK: module @m_1
// CHECK: stablehlo.concatenate {{.*}} -> tensor<2x7x3xf32>
// CHECK-NEXT: stablehlo.convolution{{.*}}pad = {{.*}}0, 1{{.*}}(tensor<2x7x3xf32>, tensor<2x6x5xf32>) -> tensor<3x3x5xf32>
// CHECK-NEXT: "pcp.all_reduce"(%{{.*}}) {axes = ["rows"], kind = "sum"
"pcp.mesh"() {axes = [#pcp.axis<"rows", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @kernel(%x: tensor<2x12x3xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["rows"], []], [], []>}, %y: tensor<2x12x5xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["rows"], []], [], []>}) -> (tensor<3x3x5xf32> {pcp.sharding = #pcp.sharding<@m, [[], [], []], [], []>}) {
  %0 = stablehlo.convolution(%x, %y) dim_numbers = [f, 0, b]x[i, 0, o]->[0, b, f], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x12x3xf32>, tensor<2x12x5xf32>) -> tensor<3x3x5xf32>
  return %0 : tensor<3x3x5xf32>
}

// -----

// Windows that do not overlap need nothing of neighbours where they fit the parts.
// CHECK-LABEL: func.func @pool(
// CHECK-NOT: pcp.permute
// CHECK: "stablehlo.reduce_window"(%arg0
// CHECK: (tensor<8xf32>, tensor<f32>) -> tensor<4xf32>
// CHECK: module @m_1
"pcp.mesh"() {axes = [#pcp.axis<"a", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @pool(%x: tensor<16xf32> {pcp.sharding = #pcp.sharding<@m, [["a"]], [], []>}) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %zero) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<16xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// A reversal of equal parts is one message each, where its result is asked for cut.
// CHECK-LABEL: func.func @turn(
// CHECK: %[[OTHER:.*]] = "pcp.permute"(%arg0) {axes = ["a"], mesh = @m, ordered, {{.*}}0, 3{{.*}}1, 2{{.*}}2, 1{{.*}}3, 0
// CHECK-NEXT: stablehlo.reverse %[[OTHER]], dims = [0] : tensor<2xf32>
"pcp.mesh"() {axes = [#pcp.axis<"a", 4>], devices = [], sym_name = "m"} : () -> ()
func.func @turn(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["a"]], [], []>}) -> (tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["a"]], [], []>}) {
  %0 = stablehlo.reverse %x, dims = [0] : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// Of an operand that is whole everyone takes what it needs: nothing is sent.
// CHECK-LABEL: func.func @strided(
// CHECK: module @m_1
// CHECK-NOT: pcp.permute
// CHECK: %[[PART:.*]] = stablehlo.slice %arg0 [5:8]
// CHECK-NEXT: stablehlo.slice %[[PART]] [0:3:2]
"pcp.mesh"() {axes = [#pcp.axis<"a", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @strided(%x: tensor<12xf32> {pcp.sharding = #pcp.sharding<@m, [[]], [], []>}) -> (tensor<4xf32> {pcp.sharding = #pcp.sharding<@m, [["a"]], [], []>}) {
  %0 = stablehlo.slice %x [1:8:2] : (tensor<12xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// A running sum needs all that is before: moving that is no less than gathering it.
// CHECK-LABEL: func.func @running(
// CHECK: module @m_1
// CHECK: "pcp.all_gather"
// CHECK-NOT: pcp.permute
"pcp.mesh"() {axes = [#pcp.axis<"a", 4>], devices = [], sym_name = "m"} : () -> ()
func.func @running(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["a"]], [], []>}) -> (tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["a"]], [], []>}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %zero) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) {window_dimensions = array<i64: 8>, padding = dense<[[7, 0]]> : tensor<1x2xi64>} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
