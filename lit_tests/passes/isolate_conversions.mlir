// RUN: pcp-opt %s --pcp-isolate-conversions=of=contractions | filecheck %s
// RUN: pcp-opt %s --pcp-isolate-conversions=of=scatters | filecheck %s --check-prefix=SCATTER
// RUN: not pcp-opt %s --pcp-isolate-conversions=of=scatter 2>&1 | filecheck %s --check-prefix=KIND

// KIND: pcp-isolate-conversions: of=scatter is not one of contractions, scatters. Did you mean 'scatters'?

// CHECK-LABEL: func.func @product(
// CHECK: %[[A:.*]] = stablehlo.convert %arg0 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
// CHECK: %[[X:.*]] = stablehlo.optimization_barrier %[[A]]
// CHECK: %[[B:.*]] = stablehlo.convert %arg1 : (tensor<8x2xbf16>) -> tensor<8x2xf32>
// CHECK: %[[Y:.*]] = stablehlo.optimization_barrier %[[B]]
// CHECK: %[[P:.*]] = stablehlo.dot_general %[[X]], %[[Y]], {{.*}} : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
// CHECK: %[[H:.*]] = stablehlo.optimization_barrier %[[P]]
// CHECK: stablehlo.convert %[[H]] : (tensor<4x2xf32>) -> tensor<4x2xbf16>
// CHECK: stablehlo.dot_general %arg2, %arg2
// SCATTER-LABEL: func.func @product(
// SCATTER-NOT: optimization_barrier
func.func @product(%x: tensor<4x8xbf16>, %y: tensor<8x2xbf16>, %z: tensor<4x4xf32>) -> (tensor<4x2xbf16>, tensor<4x4xf32>) {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<4x8xbf16>, tensor<8x2xbf16>) -> tensor<4x2xf32>
  %1 = stablehlo.convert %0 : (tensor<4x2xf32>) -> tensor<4x2xbf16>
  %2 = stablehlo.dot_general %z, %z, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %1, %2 : tensor<4x2xbf16>, tensor<4x4xf32>
}

// Seen through elementwise ops, which IREE fuses; updates as they come stay.
// SCATTER-LABEL: func.func @lookup(
// SCATTER: %[[U:.*]] = stablehlo.multiply
// SCATTER: %[[H:.*]] = stablehlo.optimization_barrier %[[U]] : tensor<2x4xf32>
// SCATTER: %[[FIRST:.*]] = "stablehlo.scatter"(%arg0, %arg1, %[[H]])
// SCATTER: "stablehlo.scatter"(%[[FIRST]], %arg1, %arg3)
func.func @lookup(%t: tensor<8x4xf32>, %i: tensor<2x1xi32>, %g: tensor<2x4xbf16>, %u: tensor<2x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.convert %g : (tensor<2x4xbf16>) -> tensor<2x4xf32>
  %1 = stablehlo.multiply %0, %u : tensor<2x4xf32>
  %2 = "stablehlo.scatter"(%t, %i, %1) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %4 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %4 : tensor<f32>
  }) : (tensor<8x4xf32>, tensor<2x1xi32>, tensor<2x4xf32>) -> tensor<8x4xf32>
  %3 = "stablehlo.scatter"(%2, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %4 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %4 : tensor<f32>
  }) : (tensor<8x4xf32>, tensor<2x1xi32>, tensor<2x4xf32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}

// A model's own conversion, and a reduction of what was narrow.
// CHECK-LABEL: func.func @converted(
// CHECK: %[[C:.*]] = stablehlo.convert %arg0
// CHECK: %[[D:.*]] = stablehlo.optimization_barrier %[[C]] : tensor<4x4xf32>
// CHECK: %[[P:.*]] = stablehlo.dot_general %[[D]], %arg1
// CHECK: %[[Q:.*]] = stablehlo.optimization_barrier %[[P]]
// CHECK: stablehlo.reduce(%[[Q]] init
// CHECK: %[[E:.*]] = stablehlo.optimization_barrier %[[C]] : tensor<4x4xf32>
// CHECK: stablehlo.reduce(%[[E]] init
// CHECK: stablehlo.reduce(%{{[0-9]+}} init
// SCATTER-LABEL: func.func @converted(
// SCATTER-NOT: optimization_barrier
func.func @converted(%x: tensor<4x4xbf16>, %y: tensor<4x4xf32>, %m: tensor<4x4xi1>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.convert %x : (tensor<4x4xbf16>) -> tensor<4x4xf32>
  %1 = stablehlo.dot_general %0, %y, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %3 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = stablehlo.convert %m : (tensor<4x4xi1>) -> tensor<4x4xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %2, %3, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
