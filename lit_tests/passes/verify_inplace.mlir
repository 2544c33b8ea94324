// RUN: pcp-opt %s --pcp-verify-inplace=func=apply | filecheck %s
// RUN: pcp-opt %s --pcp-verify-inplace=func=mixed | filecheck %s --check-prefix=MIXED

// The parameter and its moment are written over; the gradient and the step are not.

// CHECK: func.func @apply
// CHECK-SAME: %arg0: tensor<4xf32> {iree.abi.output = 0 : index, pcp.name = "w", pcp.role = "param"}
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.name = "w", pcp.role = "grad"}
// CHECK-SAME: %arg2: tensor<4xf32> {iree.abi.output = 1 : index, pcp.name = "m.w", pcp.role = "state"}
// CHECK-SAME: %arg3: tensor<i32> {pcp.name = "step", pcp.role = "state"}
func.func @apply(%w: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}, %g: tensor<4xf32> {pcp.name = "w", pcp.role = "grad"}, %m: tensor<4xf32> {pcp.name = "m.w", pcp.role = "state"}, %step: tensor<i32> {pcp.name = "step", pcp.role = "state"}) -> (tensor<4xf32> {pcp.name = "w", pcp.role = "param"}, tensor<4xf32> {pcp.name = "m.w", pcp.role = "state"}, tensor<i32> {pcp.name = "step", pcp.role = "state"}) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0 = stablehlo.add %m, %g : tensor<4xf32>
  %1 = stablehlo.subtract %w, %0 : tensor<4xf32>
  %2 = stablehlo.add %step, %one : tensor<i32>
  return %1, %0, %2 : tensor<4xf32>, tensor<4xf32>, tensor<i32>
}

// The same with a read that is not elementwise.

// MIXED: func.func @mixed
// MIXED-SAME: %arg0: tensor<4x4xf32> {pcp.copied = "it is read by stablehlo.dot_general, which is not elementwise", pcp.name = "w", pcp.role = "param"}
func.func @mixed(%w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> (tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) {
  %0 = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.subtract %w, %0 : tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}
