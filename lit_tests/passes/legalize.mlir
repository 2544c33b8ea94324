// RUN: pcp-opt %s --pcp-legalize --split-input-file | filecheck %s

// Tokens may be anything: they are clamped.
// CHECK-LABEL: func.func @embedding
// CHECK: %[[LAST:.*]] = stablehlo.constant dense<4> : tensor<i64>
// CHECK: %[[I:.*]] = stablehlo.clamp %{{.*}}, %arg1, %[[LAST]]
// CHECK: "stablehlo.gather"(%arg0, %[[I]])
func.func @embedding(%table: tensor<5x3xf32>, %i: tensor<4x1xi64>) -> tensor<4x3xf32> {
  %0 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<5x3xf32>, tensor<4x1xi64>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

// A counter that stays inside needs no clamp.
// CHECK-LABEL: func.func @positions
// CHECK-NOT: stablehlo.clamp
// CHECK: return
func.func @positions(%table: tensor<5x3xf32>) -> tensor<4x3xf32> {
  %i = stablehlo.iota dim = 0 : tensor<4x1xi64>
  %0 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<5x3xf32>, tensor<4x1xi64>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

// Updates that do not fit become -0.0, which changes nothing.
// CHECK-LABEL: func.func @accumulate
// CHECK: %[[C:.*]] = stablehlo.clamp
// CHECK: %[[IN:.*]] = stablehlo.compare EQ, %[[C]],
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<-0.000000e+00>
// CHECK: stablehlo.select %{{.*}}, %{{.*}}, %[[ZERO]]
// CHECK: "stablehlo.scatter"(%arg0
func.func @accumulate(%table: tensor<5x3xf32>, %i: tensor<4x1xi64>, %u: tensor<4x3xf32>) -> tensor<5x3xf32> {
  %0 = "stablehlo.scatter"(%table, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<5x3xf32>, tensor<4x1xi64>, tensor<4x3xf32>) -> tensor<5x3xf32>
  return %0 : tensor<5x3xf32>
}

// -----

// Windows that overlap: no select_and_scatter is left.
// CHECK-LABEL: func.func @pool_gradient
// CHECK-NOT: select_and_scatter
// CHECK-COUNT-3: stablehlo.pad
// CHECK-NOT: select_and_scatter
// CHECK: return
func.func @pool_gradient(%x: tensor<5xf32>, %g: tensor<3xf32>) -> tensor<5xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.select_and_scatter"(%x, %g, %zero) <{window_dimensions = array<i64: 3>, window_strides = array<i64: 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %s : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<5xf32>, tensor<3xf32>, tensor<f32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

// CHECK-LABEL: func.func @mapped
// CHECK-NEXT: %[[Y:.*]] = stablehlo.negate %arg0 : tensor<3xf32>
// CHECK-NEXT: return %[[Y]]
func.func @mapped(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "stablehlo.map"(%x) <{dimensions = array<i64: 0>}> ({
  ^bb0(%a: tensor<f32>):
    %n = stablehlo.negate %a : tensor<f32>
    stablehlo.return %n : tensor<f32>
  }) : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// After differentiation it is the value itself.
// CHECK-LABEL: @stop_gradient
// CHECK-NEXT: return %arg0
func.func @stop_gradient(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pcp.stop_gradient"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// What a body carries and does not read, or returns from outside of the loop, is tied to
// what the step was given; what it hands on, and what nobody reads, is left alone.
// CHECK-LABEL: @carries
// CHECK: stablehlo.while(%[[I:.+]] = %{{.+}}, %[[A:.+]] = %arg0, %[[B:.+]] = %arg1, %[[C:.+]] = %arg2, %[[D:.+]] = %arg0)
// CHECK: do {
// CHECK-DAG: %[[S:.+]] = stablehlo.tanh %[[B]]
// CHECK-DAG: %[[U:.+]]:2 = stablehlo.optimization_barrier %[[S]], %[[A]]
// CHECK-DAG: %[[V:.+]]:2 = stablehlo.optimization_barrier %{{.+}}, %[[B]]
// CHECK: stablehlo.return %{{.+}}, %[[U]]#0, %[[V]]#0, %[[C]], %[[S]]
func.func @carries(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %r:5 = stablehlo.while(%i = %zero, %a = %x, %b = %y, %c = %z, %d = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %t = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %s = stablehlo.tanh %b : tensor<4xf32>
    stablehlo.return %j, %s, %zeros, %c, %s : tensor<i32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  return %r#1, %r#2, %r#3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// Where neighbours lie apart a table is copied, and each slice that is sorted.
// CHECK-LABEL: func.func @views
func.func @views(%x: tensor<4x5x6xf32>, %i: tensor<7x1xi32>) -> (tensor<7x5xf32>, tensor<7x6xf32>, tensor<5x6xf32>) {
  // CHECK-DAG: %[[COLUMN:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x5x1xf32>) -> tensor<4x5xf32>
  // CHECK-DAG: %[[TABLE:.*]] = stablehlo.optimization_barrier %[[COLUMN]]
  // CHECK-DAG: "stablehlo.gather"(%[[TABLE]],
  // CHECK-DAG: %[[ROWS:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x1x6xf32>) -> tensor<4x6xf32>
  // CHECK-DAG: "stablehlo.gather"(%[[ROWS]],
  // CHECK-DAG: %[[FIRST:.*]] = stablehlo.reshape %{{.*}} : (tensor<1x5x6xf32>) -> tensor<5x6xf32>
  // CHECK-DAG: %[[HELD:.*]] = stablehlo.optimization_barrier %[[FIRST]]
  // CHECK-DAG: "stablehlo.sort"(%[[HELD]])
  %c = stablehlo.slice %x [0:4, 0:5, 2:3] : (tensor<4x5x6xf32>) -> tensor<4x5x1xf32>
  %column = stablehlo.reshape %c : (tensor<4x5x1xf32>) -> tensor<4x5xf32>
  %0 = "stablehlo.gather"(%column, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 5>}> : (tensor<4x5xf32>, tensor<7x1xi32>) -> tensor<7x5xf32>
  %r = stablehlo.slice %x [0:4, 1:2, 0:6] : (tensor<4x5x6xf32>) -> tensor<4x1x6xf32>
  %rows = stablehlo.reshape %r : (tensor<4x1x6xf32>) -> tensor<4x6xf32>
  %1 = "stablehlo.gather"(%rows, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<7x1xi32>) -> tensor<7x6xf32>
  %f = stablehlo.slice %x [0:1, 0:5, 0:6] : (tensor<4x5x6xf32>) -> tensor<1x5x6xf32>
  %first = stablehlo.reshape %f : (tensor<1x5x6xf32>) -> tensor<5x6xf32>
  %2 = "stablehlo.sort"(%first) <{dimension = 0 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<5x6xf32>) -> tensor<5x6xf32>
  return %0, %1, %2 : tensor<7x5xf32>, tensor<7x6xf32>, tensor<5x6xf32>
}

// -----

// Many are sorted by a network, in a loop: what the comparator reads, and positions. By
// those is gathered at last what goes along.
// CHECK-LABEL: func.func @network
func.func @network(%x: tensor<300xf32>, %y: tensor<300xi32>) -> (tensor<300xf32>, tensor<300xi32>) {
  // CHECK: stablehlo.pad %{{.*}}, low = [0, 0], high = [0, 212]
  // CHECK-NOT: stablehlo.sort
  // CHECK: %[[LOOP:.*]]:4 = stablehlo.while({{.*}}) : tensor<i32>, tensor<i32>, tensor<512xi32>, tensor<512xf32>
  // CHECK: stablehlo.shift_left
  // CHECK: stablehlo.xor
  // CHECK-COUNT-2: "stablehlo.gather"
  // CHECK: stablehlo.slice
  // CHECK: "stablehlo.gather"(%arg1,
  %0:2 = "stablehlo.sort"(%x, %y) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<300xf32>, tensor<300xi32>) -> (tensor<300xf32>, tensor<300xi32>)
  return %0#0, %0#1 : tensor<300xf32>, tensor<300xi32>
}
