// RUN: pcp-opt %s --pcp-isolate-sorts | filecheck %s
// RUN: pcp-opt %s --pcp-isolate-sorts --pcp-isolate-sorts | filecheck %s

// The positions have no users.
// CHECK-LABEL: func.func @main
// CHECK: [[SORTED:%.*]]:2 = "stablehlo.sort"
// CHECK: [[KEPT:%.*]]:2 = stablehlo.optimization_barrier [[SORTED]]#0, [[SORTED]]#1 : tensor<8xf32>, tensor<8xi32>
// CHECK-NEXT: return [[KEPT]]#0 : tensor<8xf32>
func.func @main(%keys: tensor<8xf32>) -> tensor<8xf32> {
  %positions = stablehlo.iota dim = 0 : tensor<8xi32>
  %0:2 = "stablehlo.sort"(%keys, %positions) <{dimension = 0 : i64, is_stable = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>):
    %1 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<8xf32>, tensor<8xi32>) -> (tensor<8xf32>, tensor<8xi32>)
  return %0#0 : tensor<8xf32>
}
