// RUN: pcp-opt %s --pcp-verify-inplace --pcp-stack-updates | filecheck %s

// Equal updates of the parameters that @grad stacks are one, on stacks. What reads a
// gradient by itself reads a row. The parameter c is in no stack, and stays apart.

// CHECK-LABEL: func.func @apply(
// CHECK-DAG: %[[P:.*]] = stablehlo.concatenate %{{.*}}, %{{.*}}, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
// CHECK-DAG: %[[G:.*]] = stablehlo.concatenate %{{.*}}, %{{.*}}, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
// CHECK: %[[ROW:.*]] = stablehlo.slice %{{.*}} [0:1, 0:4]
// CHECK-NEXT: %[[GA:.*]] = stablehlo.reshape %[[ROW]]
// CHECK: stablehlo.reduce(%[[GA]]
// CHECK: %[[C:.*]] = stablehlo.subtract %arg4, %arg5 : tensor<4xf32>
// CHECK: stablehlo.multiply %{{.*}} : tensor<2x4xf32>
// CHECK: %[[S:.*]] = stablehlo.subtract %{{.*}} : tensor<2x4xf32>
// CHECK: stablehlo.slice %[[S]] [0:1, 0:4]
// CHECK: stablehlo.slice %[[S]] [1:2, 0:4]
// CHECK-NOT: stablehlo.subtract
func.func @grad(
    %a: tensor<4xf32> {pcp.name = "a", pcp.role = "param"},
    %b: tensor<4xf32> {pcp.name = "b", pcp.role = "param"}) -> tensor<2x4xf32> {
  %0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<1x4xf32>
  %1 = stablehlo.reshape %b : (tensor<4xf32>) -> tensor<1x4xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
func.func @apply(
    %a: tensor<4xf32> {pcp.name = "a", pcp.role = "param"}, %ga: tensor<4xf32> {pcp.name = "a", pcp.role = "grad"},
    %b: tensor<4xf32> {pcp.name = "b", pcp.role = "param"}, %gb: tensor<4xf32> {pcp.name = "b", pcp.role = "grad"},
    %c: tensor<4xf32> {pcp.name = "c", pcp.role = "param"}, %gc: tensor<4xf32> {pcp.name = "c", pcp.role = "grad"})
    -> (tensor<4xf32> {pcp.name = "a", pcp.role = "param"}, tensor<4xf32> {pcp.name = "b", pcp.role = "param"},
        tensor<4xf32> {pcp.name = "c", pcp.role = "param"}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %norm = stablehlo.reduce(%ga init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %all = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %0 = stablehlo.multiply %ga, %all : tensor<4xf32>
  %1 = stablehlo.subtract %a, %0 : tensor<4xf32>
  %2 = stablehlo.multiply %gb, %all : tensor<4xf32>
  %3 = stablehlo.subtract %b, %2 : tensor<4xf32>
  %4 = stablehlo.subtract %c, %gc : tensor<4xf32>
  return %1, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
