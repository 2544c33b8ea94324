// RUN: pcp-opt %s --pcp-infer-roles --pcp-grad="func=main name=grad" --pcp-expand-training="optimizer=sgd{lr=0.1} algorithm=none" --split-input-file --verify-diagnostics | filecheck %s

// What @main names for evaluation has its arguments' names, and @eval calls it.

// CHECK-LABEL: func.func private @still
// CHECK-SAME: pcp.name = "w", pcp.role = "param"
// CHECK-LABEL: func.func @eval
// CHECK: call @still
module {
  func.func @main(%w: tensor<f32> {pcp.name = "w", pcp.role = "param"}, %x: tensor<f32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> attributes {pcp.evaluation = @still} {
    %0 = stablehlo.multiply %w, %x : tensor<f32>
    %1 = stablehlo.multiply %0, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @still(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.multiply %w, %x : tensor<f32>
    return %0 : tensor<f32>
  }
}
