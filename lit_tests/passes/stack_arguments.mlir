// RUN: pcp-opt %s --pcp-stack-arguments | filecheck %s
// RUN: pcp-opt %s --pcp-stack-arguments --pcp-strip-metadata | filecheck %s --check-prefix=IREE

// What a function stacks of its arguments comes as a stack, and what it takes apart goes
// as one, in the storage of the stack that gave it. An argument that is read by itself,
// too, stays what it is.

// CHECK-LABEL: func.func @step(
// CHECK-SAME: attributes {pcp.parts}
// CHECK: %[[P:.*]] = stablehlo.concatenate
// CHECK: %[[CALL:.*]]:2 = call @step_part0(%arg2, %[[P]])
// CHECK: stablehlo.slice %[[CALL]]#1 [0:1, 0:4]
// CHECK: stablehlo.slice %[[CALL]]#1 [1:2, 0:4]

// CHECK-LABEL: func.func @step_part0(
// CHECK-SAME: %arg0: tensor<4xf32>, %arg1: tensor<2x4xf32> {iree.abi.output = 1 : index})
// CHECK-SAME: -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {pcp.part}
// CHECK-NEXT: %[[R:.*]] = stablehlo.reshape %arg0
// CHECK: %[[C:.*]] = stablehlo.concatenate %[[R]]
// CHECK: %[[SUM:.*]] = stablehlo.add %arg1, %[[C]]
// CHECK: return %[[C]], %[[SUM]]

// Who called it calls the part.
// CHECK-LABEL: func.func @again(
// CHECK: call @step_part0(

// IREE: func.func @step_part0(
// IREE-NOT: func.func
func.func @step(
    %a: tensor<4xf32> {pcp.name = "a", pcp.role = "param", iree.abi.output = 0 : index},
    %b: tensor<4xf32> {pcp.name = "b", pcp.role = "param", iree.abi.output = 1 : index},
    %c: tensor<4xf32> {pcp.name = "c", pcp.role = "data"})
    -> (tensor<4xf32> {pcp.name = "a", pcp.role = "param"},
        tensor<4xf32> {pcp.name = "b", pcp.role = "param"}, tensor<2x4xf32>) {
  %0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<1x4xf32>
  %1 = stablehlo.reshape %b : (tensor<4xf32>) -> tensor<1x4xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.reshape %c : (tensor<4xf32>) -> tensor<1x4xf32>
  %4 = stablehlo.concatenate %3, %3, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
  %5 = stablehlo.add %2, %4 : tensor<2x4xf32>
  %6 = stablehlo.slice %5 [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
  %7 = stablehlo.reshape %6 : (tensor<1x4xf32>) -> tensor<4xf32>
  %8 = stablehlo.slice %5 [1:2, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
  %9 = stablehlo.reshape %8 : (tensor<1x4xf32>) -> tensor<4xf32>
  return %7, %9, %4 : tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>
}
func.func @again(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>) attributes {pcp.parts} {
  %0:3 = call @step(%a, %b, %c) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>)
  return %0#0, %0#1, %0#2 : tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>
}
