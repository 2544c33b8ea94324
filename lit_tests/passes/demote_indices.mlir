// RUN: pcp-opt %s --pcp-demote-indices --allow-unregistered-dialect | filecheck %s

// CHECK-LABEL: func.func @indices(%arg0: tensor<4xi64>) -> tensor<4xi64>
// CHECK: [[WORDS:%.*]] = "flow.tensor.bitcast"(%arg0) {{.*}} : (tensor<4xi64>) -> tensor<4x2xi32>
// CHECK: [[PAIR:%.*]] = stablehlo.slice [[WORDS]] [0:4, 0:1]
// CHECK: [[LOW:%.*]] = stablehlo.reshape [[PAIR]] : (tensor<4x1xi32>) -> tensor<4xi32>
// CHECK: [[SUM:%.*]] = stablehlo.add [[LOW]], [[LOW]] : tensor<4xi32>
// CHECK: stablehlo.shift_right_arithmetic [[SUM]]
// CHECK: [[BOTH:%.*]] = stablehlo.concatenate {{.*}} -> tensor<4x2xi32>
// CHECK: [[WIDE:%.*]] = "flow.tensor.bitcast"([[BOTH]]) {{.*}} : (tensor<4x2xi32>) -> tensor<4xi64>
// CHECK: return [[WIDE]] : tensor<4xi64>
func.func @indices(%i: tensor<4xi64>) -> tensor<4xi64> {
  %0 = stablehlo.add %i, %i : tensor<4xi64>
  return %0 : tensor<4xi64>
}

// The high word is read, not computed.
// CHECK-LABEL: func.func @high
// CHECK: stablehlo.slice {{.*}} [1:2]
// CHECK-NOT: shift_right
// CHECK: return
func.func @high(%seed: tensor<i64>) -> tensor<i32> {
  %c = stablehlo.constant dense<32> : tensor<i64>
  %0 = stablehlo.shift_right_logical %seed, %c : tensor<i64>
  %1 = stablehlo.convert %0 : (tensor<i64>) -> tensor<i32>
  return %1 : tensor<i32>
}

// CHECK-LABEL: func.func @passed_on
// CHECK-NEXT: return %arg0 : tensor<4xi64>
func.func @passed_on(%i: tensor<4xi64>) -> tensor<4xi64> {
  return %i : tensor<4xi64>
}
