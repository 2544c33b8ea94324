// RUN: pcp-opt %s --pcp-accumulate=batch=6 | filecheck %s
// RUN: pcp-opt %s --pcp-accumulate='batch=6 expand=false' | filecheck %s --check-prefix=OP
// RUN: pcp-opt %s --pcp-accumulate=batch=6 -o %t.once && pcp-opt %s --pcp-accumulate='batch=6 expand=false' --pcp-accumulate | diff - %t.once

// Data of two types are cut alike; parameters are not.
// CHECK: func.func @grad(%arg0: tensor<f32> {{.*}}, %arg1: tensor<6xf32> {{.*}}, %arg2: tensor<6xi32>
// CHECK-NOT: unrealized_conversion_cast
// CHECK-DAG: stablehlo.dynamic_slice %arg1, {{.*}}, sizes = [2] : (tensor<6xf32>
// CHECK-DAG: stablehlo.dynamic_slice %arg2, {{.*}}, sizes = [2] : (tensor<6xi32>
// CHECK: call @grad.piece(%arg0

// OP: func.func @grad(
// OP: unrealized_conversion_cast %arg1, %arg2
// OP: "pcp.microbatch"
// OP-NEXT: ^bb0(%[[X:.+]]: tensor<2xf32>, %[[N:.+]]: tensor<2xi32>):
// OP-NEXT: call @grad.piece(%arg0, %[[X]], %[[N]])
// OP: {count = 3 : i64, reduce = ["mean", "mean"]}
func.func @grad(%w: tensor<f32> {pcp.name = "w", pcp.role = "param"}, %x: tensor<2xf32> {pcp.name = "x", pcp.role = "data"}, %n: tensor<2xi32> {pcp.name = "n", pcp.role = "data"}) -> (tensor<f32>, tensor<f32>) {
  return %w, %w : tensor<f32>, tensor<f32>
}
func.func @eval(%w: tensor<f32> {pcp.name = "w", pcp.role = "param"}, %x: tensor<2xf32> {pcp.name = "x", pcp.role = "data"}, %n: tensor<2xi32> {pcp.name = "n", pcp.role = "data"}) -> tensor<f32> {
  return %w : tensor<f32>
}
