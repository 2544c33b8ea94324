// RUN: pcp-opt %s --pcp-verify-inplace --pcp-split-functions="results=2 part=2" | filecheck %s
// RUN: pcp-opt %s --pcp-verify-inplace --pcp-split-functions | filecheck %s --check-prefix=WHOLE
// RUN: pcp-opt %s --pcp-verify-inplace --pcp-split-functions="results=2 part=2" --pcp-strip-metadata | filecheck %s --check-prefix=IREE

// The scalars that several updates share are made first. Equal updates are one function,
// which writes over what it is given; constants are made where they are read.

// CHECK-LABEL: func.func @apply(
// CHECK-SAME: attributes {pcp.parts}
// CHECK: %[[SHARED:.*]]:2 = call @apply_part0(%arg6, %arg1)
// CHECK: %[[A:.*]]:2 = call @apply_part1(%[[SHARED]]#1, %arg1, %arg0, %arg3, %arg2)
// CHECK: %[[B:.*]] = call @apply_part2(%arg5, %arg4)
// CHECK: return %[[A]]#0, %[[A]]#1, %[[B]], %[[SHARED]]#0

// CHECK-LABEL: func.func @apply_part0(%arg0: tensor<i32>, %arg1: tensor<4xf32>) -> (tensor<i32>, tensor<f32>) attributes {pcp.part}
// CHECK: stablehlo.reduce

// CHECK-LABEL: func.func @apply_part1(
// CHECK-SAME: tensor<4xf32> {iree.abi.output = 0 : index}
// CHECK-SAME: tensor<4xf32> {iree.abi.output = 1 : index}
// CHECK-SAME: attributes {pcp.part}

// CHECK-LABEL: func.func @apply_part2(
// CHECK-SAME: attributes {pcp.part}

// WHOLE-LABEL: func.func @apply(
// WHOLE-NOT: call
// WHOLE-NOT: func.func

// IREE-NOT: func.func @apply(
// IREE: func.func @apply_part0(
func.func @apply(
    %a: tensor<4xf32> {pcp.name = "a", pcp.role = "param"}, %ga: tensor<4xf32> {pcp.name = "a", pcp.role = "grad"},
    %b: tensor<4xf32> {pcp.name = "b", pcp.role = "param"}, %gb: tensor<4xf32> {pcp.name = "b", pcp.role = "grad"},
    %c: tensor<2xf32> {pcp.name = "c", pcp.role = "param"}, %gc: tensor<2xf32> {pcp.name = "c", pcp.role = "grad"},
    %step: tensor<i32> {pcp.name = "step", pcp.role = "state"})
    -> (tensor<4xf32> {pcp.name = "a", pcp.role = "param"}, tensor<4xf32> {pcp.name = "b", pcp.role = "param"},
        tensor<2xf32> {pcp.name = "c", pcp.role = "param"}, tensor<i32> {pcp.name = "step", pcp.role = "state"}) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<2xf32>
  %next = stablehlo.add %step, %one : tensor<i32>
  %norm = stablehlo.reduce(%ga init: %zero) applies stablehlo.maximum across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %all = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %0 = stablehlo.divide %ga, %all : tensor<4xf32>
  %1 = stablehlo.subtract %a, %0 : tensor<4xf32>
  %2 = stablehlo.divide %gb, %all : tensor<4xf32>
  %3 = stablehlo.subtract %b, %2 : tensor<4xf32>
  %4 = stablehlo.multiply %gc, %half : tensor<2xf32>
  %5 = stablehlo.subtract %c, %4 : tensor<2xf32>
  return %1, %3, %5, %next : tensor<4xf32>, tensor<4xf32>, tensor<2xf32>, tensor<i32>
}
