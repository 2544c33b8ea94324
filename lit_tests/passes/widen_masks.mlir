// RUN: pcp-opt %s --pcp-widen-masks | filecheck %s
// RUN: pcp-opt %s --pcp-widen-masks --pcp-widen-masks | filecheck %s

// One value everywhere is no array.
// CHECK-LABEL: func.func @main
// CHECK: [[WORDS:%.*]] = stablehlo.constant dense<[1, 0, 1, 1]> : tensor<4xi32>
// CHECK: [[HELD:%.*]] = stablehlo.optimization_barrier [[WORDS]] : tensor<4xi32>
// CHECK: [[ZERO:%.*]] = stablehlo.constant dense<0> : tensor<4xi32>
// CHECK: [[MASK:%.*]] = stablehlo.compare NE, [[HELD]], [[ZERO]]
// CHECK: [[ALL:%.*]] = stablehlo.constant dense<true> : tensor<4xi1>
// CHECK: stablehlo.and [[MASK]], [[ALL]] : tensor<4xi1>
func.func @main() -> tensor<4xi1> {
  %mask = stablehlo.constant dense<[true, false, true, true]> : tensor<4xi1>
  %all = stablehlo.constant dense<true> : tensor<4xi1>
  %0 = stablehlo.and %mask, %all : tensor<4xi1>
  return %0 : tensor<4xi1>
}
