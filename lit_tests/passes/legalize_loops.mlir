// RUN: pcp-opt %s --pcp-legalize --split-input-file | filecheck %s

// A loop that may run no round would give the caller's memory back.

// CHECK-LABEL: func.func @no_round
// CHECK: stablehlo.optimization_barrier
// CHECK: %[[NEVER:.*]] = stablehlo.compare
// CHECK: %[[OWN:.*]] = stablehlo.select %[[NEVER]], {{.*}}, %arg0
// CHECK: stablehlo.while({{.*}} = {{.*}}, {{.*}} = %[[OWN]])
func.func @no_round(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.add %y, %y : tensor<4xf32>
      stablehlo.return %j, %z : tensor<i32>, tensor<4xf32>
    }
  return %0#1 : tensor<4xf32>
}

// -----

// One that runs three rounds would not.

// CHECK-LABEL: func.func @three_rounds
// CHECK-NOT: stablehlo.select
func.func @three_rounds(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.add %y, %y : tensor<4xf32>
      stablehlo.return %j, %z : tensor<i32>, tensor<4xf32>
    }
  return %0#1 : tensor<4xf32>
}

// -----

// A branch hands on a copy; an update does not write over what a branch reads.

// CHECK-LABEL: func.func @beside_a_branch
// CHECK: "stablehlo.case"
// CHECK: %[[HANDED:.*]] = stablehlo.select {{.*}}, %[[X:.*]] : tensor<i1>
// CHECK: stablehlo.return %[[HANDED]]
// CHECK: %[[COPY:.*]] = stablehlo.select {{.*}}, %[[X]] : tensor<i1>
// CHECK: stablehlo.dynamic_update_slice %[[COPY]]
func.func @beside_a_branch(%a: tensor<4xf32>, %u: tensor<1xf32>, %i: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %x = stablehlo.add %a, %a : tensor<4xf32>
  %y = "stablehlo.case"(%i) ({
    stablehlo.return %x : tensor<4xf32>
  }, {
    %n = stablehlo.negate %x : tensor<4xf32>
    stablehlo.return %n : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %z = stablehlo.dynamic_update_slice %x, %u, %zero : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
  return %y, %z : tensor<4xf32>, tensor<4xf32>
}

// A few of many: the largest so often, each put out of the way.
// CHECK-LABEL: @few_of_many
// CHECK-NOT: stablehlo.sort
// CHECK: %[[B:.*]] = stablehlo.bitcast_convert %arg0
// CHECK: stablehlo.while
// CHECK: stablehlo.maximum
// CHECK: stablehlo.minimum
// CHECK: stablehlo.bitcast_convert
func.func @few_of_many(%x: tensor<4x2048xf32>) -> (tensor<4x3xf32>, tensor<4x3xi32>) {
  %v, %i = chlo.top_k(%x, k = 3) : tensor<4x2048xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)
  return %v, %i : tensor<4x3xf32>, tensor<4x3xi32>
}

// -----

// Positions that a loop reads by way of a look-up, and ops around it too: IREE would
// make them again in each submission, and forget one. Equal positions are merged.

// CHECK-LABEL: func.func @positions_around
// CHECK: %[[I:.*]] = stablehlo.iota dim = 0 : tensor<4xi32>
// CHECK: %[[NUMBER:.*]] = stablehlo.optimization_barrier
// CHECK: %[[NEVER:.*]] = stablehlo.compare LT, %[[NUMBER]]
// CHECK: %[[OWN:.*]] = stablehlo.select %[[NEVER]], {{.*}}, %[[I]]
// CHECK-NOT: stablehlo.iota
// CHECK: stablehlo.add %[[OWN]], %arg0
// CHECK: stablehlo.while
// CHECK: stablehlo.multiply %[[OWN]]
func.func @positions_around(%x: tensor<4xi32>) -> tensor<4xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %i0 = stablehlo.iota dim = 0 : tensor<4xi32>
  %i1 = stablehlo.iota dim = 0 : tensor<4xi32>
  %mask = stablehlo.add %i0, %x : tensor<4xi32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xi32>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.add %y, %mask : tensor<4xi32>
      stablehlo.return %j, %z : tensor<i32>, tensor<4xi32>
    }
  %1 = stablehlo.multiply %i1, %0#1 : tensor<4xi32>
  return %1 : tensor<4xi32>
}

// -----

// Those that a loop alone needs are made where it needs them.

// CHECK-LABEL: func.func @positions_inside
// CHECK-NOT: stablehlo.select
func.func @positions_inside(%x: tensor<4xi32>) -> tensor<4xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %i0 = stablehlo.iota dim = 0 : tensor<4xi32>
  %mask = stablehlo.add %i0, %x : tensor<4xi32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xi32>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.add %y, %mask : tensor<4xi32>
      stablehlo.return %j, %z : tensor<i32>, tensor<4xi32>
    }
  return %0#1 : tensor<4xi32>
}

// -----

// What only the condition reads is tied to what the round was given: IREE would drop
// it from one region of the loop alone.

// CHECK-LABEL: func.func @asked
// CHECK: stablehlo.while(%[[I:.*]] = {{.*}}, %[[GOES:.*]] = {{.*}}, %[[Y:.*]] = {{.*}})
// CHECK: %[[LESS:.*]] = stablehlo.reduce
// CHECK: %[[TIED:.*]]:2 = stablehlo.optimization_barrier %[[LESS]], %[[GOES]]
// CHECK: stablehlo.return {{.*}}, %[[TIED]]#0, {{.*}}
func.func @asked(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %true = stablehlo.constant dense<true> : tensor<i1>
  %false = stablehlo.constant dense<false> : tensor<i1>
  %0:3 = stablehlo.while(%i = %zero, %goes = %true, %y = %x)
      : tensor<i32>, tensor<i1>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %q = stablehlo.and %p, %goes : tensor<i1>
      stablehlo.return %q : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.add %y, %y : tensor<4xf32>
      %less = stablehlo.compare LT, %y, %z : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
      %any = stablehlo.reduce(%less init: %false) applies stablehlo.or across dimensions = [0]
          : (tensor<4xi1>, tensor<i1>) -> tensor<i1>
      stablehlo.return %j, %any, %z : tensor<i32>, tensor<i1>, tensor<4xf32>
    }
  return %0#2 : tensor<4xf32>
}

// -----

// What is made of positions alone, and would be written out as 2^11 ops for each reader.

// CHECK-LABEL: func.func @doubled
// CHECK: stablehlo.iota
// CHECK-COUNT-9: stablehlo.add %{{.*}} : tensor<4xi32>
// CHECK: stablehlo.optimization_barrier %{{.*}} : tensor<4xi32>
// CHECK-COUNT-2: stablehlo.add %{{.*}} : tensor<4xi32>
// CHECK-NOT: stablehlo.optimization_barrier %{{.*}} : tensor<4xi32>
// CHECK: stablehlo.if
func.func @doubled(%x: tensor<4xi32>, %p: tensor<i1>) -> tensor<4xi32> {
  %0 = stablehlo.iota dim = 0 : tensor<4xi32>
  %1 = stablehlo.add %0, %0 : tensor<4xi32>
  %2 = stablehlo.add %1, %1 : tensor<4xi32>
  %3 = stablehlo.add %2, %2 : tensor<4xi32>
  %4 = stablehlo.add %3, %3 : tensor<4xi32>
  %5 = stablehlo.add %4, %4 : tensor<4xi32>
  %6 = stablehlo.add %5, %5 : tensor<4xi32>
  %7 = stablehlo.add %6, %6 : tensor<4xi32>
  %8 = stablehlo.add %7, %7 : tensor<4xi32>
  %9 = stablehlo.add %8, %8 : tensor<4xi32>
  %10 = stablehlo.add %9, %9 : tensor<4xi32>
  %11 = stablehlo.add %10, %x : tensor<4xi32>
  %12 = "stablehlo.if"(%p) ({
    %13 = stablehlo.add %x, %x : tensor<4xi32>
    stablehlo.return %13 : tensor<4xi32>
  }, {
    %13 = stablehlo.multiply %x, %x : tensor<4xi32>
    stablehlo.return %13 : tensor<4xi32>
  }) : (tensor<i1>) -> tensor<4xi32>
  %14 = stablehlo.add %11, %12 : tensor<4xi32>
  return %14 : tensor<4xi32>
}

// -----

// Without a loop or a branch it is computed ahead of the calls.

// CHECK-LABEL: func.func @ahead
// CHECK-NOT: stablehlo.optimization_barrier
func.func @ahead(%x: tensor<4xi32>) -> tensor<4xi32> {
  %0 = stablehlo.iota dim = 0 : tensor<4xi32>
  %1 = stablehlo.add %0, %0 : tensor<4xi32>
  %2 = stablehlo.add %1, %1 : tensor<4xi32>
  %3 = stablehlo.add %2, %2 : tensor<4xi32>
  %4 = stablehlo.add %3, %3 : tensor<4xi32>
  %5 = stablehlo.add %4, %4 : tensor<4xi32>
  %6 = stablehlo.add %5, %5 : tensor<4xi32>
  %7 = stablehlo.add %6, %6 : tensor<4xi32>
  %8 = stablehlo.add %7, %7 : tensor<4xi32>
  %9 = stablehlo.add %8, %8 : tensor<4xi32>
  %10 = stablehlo.add %9, %9 : tensor<4xi32>
  %11 = stablehlo.add %10, %x : tensor<4xi32>
  return %11 : tensor<4xi32>
}
